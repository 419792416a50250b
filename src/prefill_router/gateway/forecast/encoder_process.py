"""The encoder's process as its parent sees it: starts, watches, calls and ends it."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from typing import Any, final

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.forecast.messages import (
    EncoderHello,
    FrameError,
    pack_frame,
    receive_frame,
)
from prefill_router.gateway.types import FallbackReason

_log = logging.getLogger(__name__)
_MODULE = "prefill_router.gateway.forecast.encoder_program"
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_NOBODY = EncoderHello(fingerprint="", targets=(), encoders=(), seconds=0.0, prompt_seconds=0.0)
_BUFFER = 1 << 20
_LONGEST_LINE = 1000
_END_SECONDS = 2.0


@final
class EncoderProcess:
    """A running encoder process; made by `start_encoder`.

    Attributes:
        hello: Its first message.
        gone: Set once it has ended.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.hello = _NOBODY
        self.gone = asyncio.Event()
        self._process = process
        self._last_words: deque[str] = deque(maxlen=5)
        self._listening = asyncio.create_task(self._listen())
        self._watching = asyncio.create_task(self._watch())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ask(self, value: Any) -> Any:
        """Send one frame and wait for the answer.

        Raises:
            EncoderGoneError: The process has ended, or sends something that isn't a frame.
        """
        into, out = self._process.stdin, self._process.stdout
        if into is None or out is None:
            raise EncoderGoneError("the encoder's process has no pipes")
        try:
            into.write(pack_frame(value))
            await into.drain()
            return await receive_frame(out)
        except (OSError, FrameError) as error:
            raise EncoderGoneError(f"the encoder's process doesn't answer: {error}") from None

    async def close(self, *, seconds: float | None = _END_SECONDS) -> None:
        """Let the process end after its current work; kill it if that takes longer than this."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill the process and whatever it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self.gone.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):  # a grandchild may hold the pipe
                await self._listening

    async def last_words(self) -> str:
        """Its exit status and the last lines of its log."""
        await self.kill()
        lines = " | ".join(self._last_words) or "none"
        return f"exit status {self._process.returncode}; last lines of its log: {lines}"

    async def _watch(self) -> None:
        await self._process.wait()
        self.gone.set()

    async def _listen(self) -> None:
        """Forward its log, line by line."""
        pipe = self._process.stderr
        rest = b""
        while pipe is not None and (piece := await pipe.read(_BUFFER)):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._forward(line)
            rest = rest[-_LONGEST_LINE:]
        self._forward(rest)

    def _forward(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode("utf-8", "replace").strip()
        if text:
            self._last_words.append(text)
            _log.info("encoder: %s", text)


async def start_encoder(
    options: dict[str, Any], *, seconds: float, place: socket.socket | None = None
) -> EncoderProcess:
    """Start a process, and wait until it is warm.

    Args:
        options: Its options, from `messages.plain_options`.
        seconds: The time limit.
        place: The listening socket whose connections it answers, where several processes share it.

    Raises:
        ConfigError: It can't load the router or its encoder; the message is the process's.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", _MODULE),  # -P: don't import from the working folder
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal must reach only the gateway
        limit=_BUFFER,
        env=_QUIET | os.environ,
        pass_fds=() if place is None else (place.fileno(),),
    )
    link = EncoderProcess(process)
    is_ready = False
    try:
        async with asyncio.timeout(seconds):
            shared = {} if place is None else {"socket": place.fileno()}
            link.hello = _hello(await link.ask(options | shared))
        is_ready = True
    except TimeoutError:
        raise ConfigError(
            f"the encoder's process wasn't ready within {seconds:g} s; is its disk or its GPU busy?"
        ) from None
    except (EncoderGoneError, FrameError):
        raise ConfigError(
            f"the encoder's process ended before it was ready: {await link.last_words()}"
        ) from None
    finally:
        if not is_ready:
            await link.kill()
    return link


def _hello(answer: Any) -> EncoderHello:
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        raise ConfigError(answer["error"])
    return EncoderHello.from_dict(answer)


@final
class NoForecastError(PrefillRouterError):
    """There is no forecast for a request, or none in time.

    Attributes:
        reason: The reason.
    """

    def __init__(self, reason: FallbackReason) -> None:
        super().__init__(f"there is no forecast for this request: {reason}")
        self.reason: FallbackReason = reason


@final
class EncoderGoneError(PrefillRouterError):
    """The encoder's process ended, hangs, or sends invalid answers."""
