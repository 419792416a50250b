"""One of several processes that serve a port: `python -m prefill_router_gateway.api.worker`.

Its argument is the number of its end of the channel to the supervisor, a pair of sockets. Either
side calls the other there: each call is a frame (`forecast.encoder_process`) with a number, and so
is its answer. The first frame has the worker's options; it answers once it serves, or with what is
wrong, and ends when the supervisor does.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, final

from pydantic import TypeAdapter

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router_gateway.api.server import (
    GatewayServer,
    listening,
    loop_factory,
    serve,
    serving_log,
)
from prefill_router_gateway.forecast import FrameError, pack_frame, receive_frame
from prefill_router_gateway.runtime import Gateway, GatewayPaths, ServedVersions, load, read_gauges
from prefill_router_gateway.telemetry import PlainFamily

LONGEST_READ = 1 << 20
_log = logging.getLogger(__name__)
Handlers = Mapping[str, Callable[[Any], Awaitable[Any]]]


@final
class Channel:
    """One end.

    Args:
        reader: Where the other end's frames arrive.
        writer: Where frames to the other end are written.
        handlers: What the other end may call, by name.

    Attributes:
        ended: Ends with the other end.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Handlers
    ) -> None:
        self._writer, self._handlers = writer, handlers
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.create_task(self._read(reader))

    async def call(self, name: str, value: Any = None) -> Any:
        """Call the other end.

        Raises:
            ConfigError: It raised an error, whose message this has, or it ended.
        """
        if self.ended.done():
            raise ConfigError("it has ended")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(pack_frame({"call": number, "name": name, "value": value}))
        try:
            return await future
        finally:
            del self._waiting[number]

    def tell(self, name: str, value: Any) -> None:
        """Call the other end, and ignore its answer."""
        if not self.ended.done():
            self._writer.write(pack_frame({"call": None, "name": name, "value": value}))

    def close(self) -> None:
        """End it."""
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await receive_frame(reader)
                if "name" in frame:
                    task = asyncio.create_task(self._handle(frame))
                    self._tasks.add(task)
                    task.add_done_callback(partial(self._end_call, frame["call"]))
                else:
                    self._settle_call(frame)
        except (FrameError, OSError):
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConfigError("it ended meanwhile"))

    def _settle_call(self, frame: dict[str, Any]) -> None:
        future = self._waiting.get(frame["answer"])
        if future is None or future.done():
            return
        if "error" in frame:
            future.set_exception(ConfigError(*frame["error"]))
        else:
            future.set_result(frame["value"])

    async def _handle(self, frame: dict[str, Any]) -> None:
        try:
            answer = {"value": await self._handlers[frame["name"]](frame["value"])}
        except PrefillRouterError as error:
            answer = {"error": list(error.messages)}
        except OSError as error:
            answer = {"error": [str(error)]}
        self._answer(frame["call"], answer)

    def _end_call(self, number: int | None, task: asyncio.Task[None]) -> None:
        """Answer a call that failed in an unexpected way, so that nobody waits for it."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a call of another process failed", exc_info=error)
            message = f"it failed with {type(error).__name__}; the log says where"
            self._answer(number, {"error": [message]})

    def _answer(self, number: int | None, answer: dict[str, Any]) -> None:
        if number is not None:
            with suppress(OSError):
                self._writer.write(pack_frame({"answer": number, **answer}))


PLACES = TypeAdapter(GatewayPaths)


@final
class SupervisorLink:
    """The other workers (`runtime.OtherWorkers`), reached through the supervisor.

    Args:
        reader: Where the supervisor's frames arrive.
        writer: Where frames to it are written.
    """

    _channel: Channel  # once it serves; no request arrives before

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def join(self, gateway: Gateway, server: GatewayServer) -> None:
        """Tell the supervisor that this worker serves, and take its calls from now on."""

        async def reload(pinned: Mapping[str, Any] | None) -> None:
            versions = None if pinned is None else ServedVersions(**pinned)
            loaded = await gateway.reload(pinned=versions)
            if loaded.candidate_problems:
                raise ConfigError(*loaded.candidate_problems)

        async def metrics(_: Any) -> list[PlainFamily]:
            return gateway.metrics.export(read_gauges(gateway))

        async def learn(values: Mapping[str, Any]) -> None:
            gateway.apply_shared(values)

        self._writer.write(pack_frame({"error": []}))
        handlers = {"reload": reload, "metrics": metrics, "learn": learn}
        self._channel = Channel(self._reader, self._writer, handlers)
        self._channel.ended.add_done_callback(lambda _: setattr(server, "should_exit", True))

    async def reload(self) -> None:
        """Reload all workers."""
        await self._channel.call("reload")

    async def metrics(self) -> list[PlainFamily]:
        """The metrics of all workers."""
        families: list[PlainFamily] = await self._channel.call("metrics")
        return families

    def share(self, values: Mapping[str, Any]) -> None:
        """Let all workers learn these values."""
        self._channel.tell("share", dict(values))


async def work(link: socket.socket) -> int:
    """Serve until asked to end; returns the exit status."""
    reader, writer = await asyncio.open_connection(sock=link, limit=LONGEST_READ)
    options = await receive_frame(reader)
    other_workers = SupervisorLink(reader, writer)
    try:
        places = PLACES.validate_python(options["places"])
        loaded = load(places)
        at = loaded.settings.listen.model_copy(update={"port": options["port"]})
        log = serving_log(loaded, worker=options["number"])
        with log as writes, listening(at, is_shared=True) as place:
            await serve(
                places, loaded, place, other_workers.join, writes, other_workers=other_workers
            )
    except PrefillRouterError as error:
        writer.write(pack_frame({"error": list(error.messages)}))
        await writer.drain()
        return 1
    return 0


def main() -> int:
    """Serve; returns the exit status."""
    link = socket.socket(fileno=int(sys.argv[1]))
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work(link))
    return 1  # asked to end before it served


if __name__ == "__main__":
    sys.exit(main())
