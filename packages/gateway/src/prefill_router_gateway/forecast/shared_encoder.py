"""One encoder's process that several gateways share, over a Unix socket.

The owner starts the process and restarts it when it ends (`SharedEncoder`). Each gateway opens a
connection (`EncoderConnection`), which takes the place of an `EncoderProcess`. The process encodes
what waits on all connections together (`serve_clients`). A connection that ends affects no other.
"""

import asyncio
import faulthandler
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import Any, BinaryIO, NamedTuple, final

from prefill_router.errors import ConfigError
from prefill_router_gateway.forecast.encoder_process import (
    EncoderGoneError,
    EncoderHello,
    EncoderProcess,
    FrameError,
    pack_frame,
    read_frame,
    receive_frame,
    start_encoder,
)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a process that failed is started again: at first, and at most."""
HANG_SECONDS = 30.0
"""A batch that takes this much longer than expected hangs."""
PATIENCE = 10
"""The longest prompts take this many times as long as that of the warm-up."""
_log = logging.getLogger(__name__)
_BUFFER = 1 << 20
_STABLE = 60.0  # seconds after which a process that ends is no longer one that keeps failing
_BACKLOG = 128
_ACCEPT_PAUSE = 0.1


@final
class SharedEncoder:
    """The owner of the process; it never calls it.

    Args:
        path: The path of the Unix socket, in a folder that only this user can enter.
        options: The process's options, from `plain_options`, and `most_prompts` of a batch.
        start_seconds: Time limit for loading, a download included.
    """

    def __init__(
        self, path: Path, options: dict[str, Any], *, start_seconds: float = 600.0
    ) -> None:
        self.path = path
        self._options, self._start_seconds = options, start_seconds
        self._place = socket.socket(socket.AF_UNIX)
        self._link: EncoderProcess | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> EncoderHello:
        """Start the process, and return its first message once it is warm.

        Raises:
            ConfigError: It can't load the router or its encoder; the message is the process's.
        """
        try:
            self._place.bind(str(self.path))
            self._place.listen(_BACKLOG)  # clients wait here while the process is restarted
            self._link = await self._start_process()
        except OSError as error:  # a path of over a hundred bytes
            raise ConfigError(
                f"{self.path} can't be a socket ({error}); name a shorter folder in TMPDIR"
            ) from None
        finally:
            if self._link is None:
                await self.close()
        self._watching = asyncio.create_task(self._watch(self._link))
        return self._link.hello

    async def close(self, *, seconds: float | None = None) -> None:
        """End the process once no client is connected, or after this time."""
        if self._watching is not None:
            self._watching.cancel()
        self._place.close()
        self.path.unlink(missing_ok=True)
        if self._link is not None:
            await self._link.close(seconds=seconds)

    async def _start_process(self) -> EncoderProcess:
        return await start_encoder(self._options, seconds=self._start_seconds, place=self._place)

    async def _watch(self, link: EncoderProcess) -> None:
        fingerprint, pause = link.hello.fingerprint, FIRST_PAUSE
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await link.end.wait()
            if clock() - began > _STABLE:
                pause = FIRST_PAUSE
            words = await link.last_words()
            _log.warning("the encoder's process ended: %s; it is restarted", words)
            while link.end.is_set():
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                try:
                    link = await self._start_process()
                except (ConfigError, OSError) as error:
                    _log.warning("the encoder's process can't be started: %s", error)
                    continue
                self._link = link
                if link.hello.fingerprint != fingerprint:
                    _log.error("the router's folder now has another router; reload the gateway")
                    await link.kill()


@final
class EncoderConnection:
    """A connection to a shared encoder's process, used like an `EncoderProcess`.

    Attributes:
        hello: The process's first message.
        end: Set once the connection has ended.
    """

    hello: EncoderHello

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.end = asyncio.Event()
        self._writer = writer
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(reader))

    async def ask(self, value: Any) -> Any:
        """Send one frame and wait for the answer.

        Raises:
            EncoderGoneError: The process has ended, or sends something that isn't a frame.
        """
        self._writer.write(pack_frame(value))
        return await self.answer()

    async def answer(self) -> Any:
        """The next frame; raises as `ask`."""
        answer = await self._answers.get()
        if answer is None:
            raise EncoderGoneError("the connection to the encoder's process ended")
        return answer

    async def close(self) -> None:
        """End the connection; the process goes on for others."""
        self._reading.cancel()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    kill = close

    async def last_words(self) -> str:
        """Where its log is."""
        return "the log of its owner says why"

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._answers.put_nowait(await receive_frame(reader))
        except (OSError, FrameError):
            pass
        finally:
            self.end.set()
            self._answers.put_nowait(None)


async def connect_encoder(path: Path, *, seconds: float) -> EncoderConnection:
    """Connect to a shared encoder's process, and wait until it is warm.

    Raises:
        ConfigError: There is none at this path, or it isn't warm in time.
    """
    try:
        async with asyncio.timeout(seconds):
            link = EncoderConnection(*await asyncio.open_unix_connection(path, limit=_BUFFER))
            try:
                link.hello = EncoderHello.from_dict(await link.answer())
            finally:
                if "hello" not in vars(link):
                    await link.close()
    except TimeoutError:
        raise ConfigError(f"the encoder's process wasn't ready within {seconds:g} s") from None
    except (OSError, FrameError, EncoderGoneError) as error:
        raise ConfigError(
            f"the shared encoder's process can't be reached ({error}); if the router's folder or "
            "routing.max_batch has changed since the start, reload the gateway"
        ) from None
    return link


class _Waiting(NamedTuple):
    prompts: list[Any]
    answer: SimpleQueue[dict[str, Any]]


def serve_clients(
    place: socket.socket,
    source: BinaryIO,
    hello: EncoderHello,
    forecast: Callable[[list[Any]], tuple[list[Any], float]],
    *,
    works: Callable[[], bool],
    most: int,
    hang_seconds: float = HANG_SECONDS,
) -> bool:
    """Answer all connections, in the encoder's process.

    A batch that hangs ends the process.

    Args:
        place: The listening socket.
        source: The owner's pipe.
        hello: Sent first on each connection.
        forecast: The results of prompts, and the seconds that they took.
        works: Whether an ordinary prompt can be encoded; called where a whole batch failed.
        most: The most prompts that are encoded together.
        hang_seconds: A batch that takes this much longer than expected hangs.

    Returns:
        True once the owner's pipe has ended and no client is connected; False as soon as nothing
        can be encoded any more.
    """
    waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
    clients = _Clients(hello, waiting)
    Thread(target=clients.accept, args=(place,), daemon=True).start()
    Thread(target=clients.await_end, args=(source,), daemon=True).start()
    following = waiting.get()
    while following is not None:
        batch, following = _take_batch(following, waiting, most)
        prompts = [prompt for request in batch for prompt in request.prompts]
        limit = hang_seconds + PATIENCE * hello.prompt_seconds * len(prompts)
        faulthandler.dump_traceback_later(limit, exit=True)  # works whatever holds the interpreter
        results, seconds = forecast(prompts)
        faulthandler.cancel_dump_traceback_later()
        _answer_batch(batch, results, seconds)
        if all(isinstance(result, str) for result in results) and not works():
            return False
        following = following or waiting.get()
    return True


class _Clients:
    """The connections to the process, each answered by a thread."""

    def __init__(self, hello: EncoderHello, waiting: "SimpleQueue[_Waiting | None]") -> None:
        self._hello, self._waiting = hello, waiting
        self._threads: list[Thread] = []
        self._changing = RLock()

    def accept(self, place: socket.socket) -> None:
        """Accept connections for as long as the socket is open."""
        while place.fileno() >= 0:
            try:
                client, _ = place.accept()
            except OSError:  # it was closed, or the process has no file descriptor left
                time.sleep(_ACCEPT_PAUSE)
                continue
            thread = Thread(target=_attend, args=(client, self._hello, self._waiting), daemon=True)
            with self._changing:  # so that a client that has its hello is always listed
                self._threads = self._find_connected()
                thread.start()
                self._threads.append(thread)

    def await_end(self, source: BinaryIO) -> None:
        """Wait until the owner's pipe has ended and no client is connected; then end the queue."""
        while source.read(_BUFFER):
            pass
        while threads := self._find_connected():
            threads[0].join()
        self._waiting.put(None)

    def _find_connected(self) -> list[Thread]:
        with self._changing:
            return [thread for thread in self._threads if thread.is_alive()]


def _answer_batch(batch: list[_Waiting], results: list[Any], seconds: float) -> None:
    """Give each request its results, and its share of the seconds by its number of prompts."""
    count, rest = sum(len(request.prompts) for request in batch), iter(results)
    for request in batch:
        share = seconds * len(request.prompts) / max(count, 1)
        request.answer.put({"found": [*islice(rest, len(request.prompts))], "seconds": share})


def _take_batch(
    first: _Waiting, waiting: "SimpleQueue[_Waiting | None]", most: int
) -> tuple[list[_Waiting], _Waiting | None]:
    """What waits already, up to `most` prompts, and what comes after it."""
    batch, count = [first], len(first.prompts)
    while count < most:
        try:
            following = waiting.get_nowait()
        except Empty:
            break
        count += most if following is None else len(following.prompts)
        if following is None or count > most:
            return batch, following
        batch.append(following)
    return batch, None


def _attend(
    client: socket.socket, hello: EncoderHello, waiting: "SimpleQueue[_Waiting | None]"
) -> None:
    """Answer one connection until it ends."""
    answer: SimpleQueue[dict[str, Any]] = SimpleQueue()
    wrong = suppress(OSError, FrameError, LookupError, TypeError)
    with wrong, client, client.makefile("rb") as file:
        client.sendall(pack_frame(hello.to_dict()))
        while (request := read_frame(file)) is not None:
            waiting.put(_Waiting(list(request["prompts"]), answer))
            client.sendall(pack_frame(answer.get()))
