"""The encoder's process as its parent sees it, and the messages between the two.

The messages are sent through pipes in frames: the length as four big-endian bytes, then JSON in
UTF-8 with options, prompts or forecasts as plain values.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.data import Message, Prompt
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.remote import PathOrUrl
from prefill_router.router import EncoderSources, Forecast
from prefill_router_gateway.records import FALLBACK_REASONS, FallbackReason

ForecastResult = Forecast | FallbackReason
"""A forecast, or why there is none."""
PerTarget = Float64[NDArray[np.float64], " target"]
_REASONS: dict[str, FallbackReason] = {reason: reason for reason in FALLBACK_REASONS}


@final
@dataclass(frozen=True, kw_only=True)
class EncoderHello:
    """The process's first message, sent once it is ready.

    Attributes:
        fingerprint: The fingerprint of the router that it has loaded.
        targets: The router's targets, in order.
        encoders: The names of its encoders.
        seconds: Seconds that loading and warming up took.
        prompt_seconds: Seconds that one prompt of about 600 words took after warming up.
    """

    fingerprint: str
    targets: tuple[str, ...]
    encoders: tuple[str, ...]
    seconds: float
    prompt_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return vars(self) | {"targets": list(self.targets), "encoders": list(self.encoders)}

    @classmethod
    def from_dict(cls, value: Any) -> "EncoderHello":
        """Read the result of `to_dict`.

        Raises:
            FrameError: It isn't one.
        """
        try:
            return cls(
                fingerprint=str(value["fingerprint"]),
                targets=tuple(map(str, value["targets"])),
                encoders=tuple(map(str, value["encoders"])),
                seconds=float(value["seconds"]),
                prompt_seconds=float(value["prompt_seconds"]),
            )
        except (LookupError, TypeError, ValueError):
            raise FrameError("not a valid first message") from None


def plain_options(
    folder: PathOrUrl, sources: EncoderSources, *, threads: int | None, reuse_bytes: int
) -> dict[str, Any]:
    """The options that the process is sent first.

    Args:
        folder: The router's folder.
        sources: Where its encoders are found.
        threads: The number of its threads; None for its default.
        reuse_bytes: Memory for the states of shared prefixes; 0 for none.

    Raises:
        ConfigError: The sources have a loaded encoder, which can't be sent to another process.
    """
    if sources.loaded:
        raise ConfigError(
            "the encoder is loaded in a process of its own; give its folder instead of a loaded "
            "encoder"
        )
    return {
        "router": str(folder.absolute() if isinstance(folder, Path) else folder),
        "folders": {name: str(Path(place).absolute()) for name, place in sources.folders.items()},
        "device": sources.device,
        "trust_remote_code": sources.trust_remote_code,
        "threads": threads,
        "reuse_bytes": reuse_bytes,
    }


def sources_of(options: Any) -> EncoderSources:
    """The sources in the result of `plain_options`."""
    return EncoderSources(
        folders=options["folders"],
        device=options["device"],
        trust_remote_code=options["trust_remote_code"],
    )


def plain_prompt(prompt: Prompt) -> Any:
    """A prompt as plain values: a text unchanged, messages as pairs."""
    return prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt]


def read_prompt(value: Any) -> Prompt:
    """Read the result of `plain_prompt`."""
    return value if isinstance(value, str) else tuple(Message(role, text) for role, text in value)


def plain_result(result: ForecastResult) -> Any:
    """A result as plain values: a reason unchanged, a forecast as a dictionary."""
    if isinstance(result, str):
        return result
    return {
        "correctness": result.correctness.tolist(),
        "tokens": result.tokens,
        "truncated": result.truncated,
        "novelty": result.novelty,
        "bins": list(result.bins),
        "output": _plain(result.output),
        "output_high": _plain(result.output_high),
    }


def _plain(amounts: PerTarget | None) -> list[float | None] | None:
    return None if amounts is None else [None if np.isnan(n) else n for n in amounts.tolist()]


def _read_amounts(value: Any, *, targets: int) -> PerTarget | None:
    if value is None:
        return None
    amounts = np.array(value, dtype=np.float64)  # None becomes NaN
    if amounts.shape != (targets,) or (amounts < 0).any() or np.isinf(amounts).any():
        raise ValueError("not numbers of output tokens")
    amounts.flags.writeable = False
    return amounts


def read_results(values: Any, *, count: int, targets: int) -> Sequence[ForecastResult]:
    """Read the results of a batch's prompts.

    Raises:
        FrameError: They aren't results of `plain_result` for this number of prompts and targets.
    """
    try:
        results = [_read_result(value) for value in values]
    except (LookupError, TypeError, ValueError):
        raise FrameError("not a list of forecasts") from None
    shapes = {result.correctness.shape for result in results if isinstance(result, Forecast)}
    if len(results) != count or not shapes <= {(targets,)}:
        raise FrameError(f"not {count} forecasts of {targets} targets")
    return results


def _read_result(value: Any) -> ForecastResult:
    if isinstance(value, str):
        return _REASONS[value]
    correctness = np.array(value["correctness"], dtype=np.float64)
    correctness.flags.writeable = False  # requests share cached forecasts
    return Forecast(
        correctness=correctness,
        tokens=int(value["tokens"]),
        truncated=bool(value["truncated"]),
        novelty=None if value["novelty"] is None else float(value["novelty"]),
        bins=tuple(map(int, value["bins"])),
        output=_read_amounts(value["output"], targets=len(correctness)),
        output_high=_read_amounts(value["output_high"], targets=len(correctness)),
    )


_HEAD = struct.Struct(">I")
MOST_FRAME_BYTES = 128 << 20
"""The longest valid frame."""


@runtime_checkable
class Readable(Protocol):
    """A binary file that can be read."""

    def read(self, size: int, /) -> bytes:
        """Read this many bytes, or fewer at the end."""
        ...


class FrameError(ValueError):
    """The received bytes aren't a complete, valid frame."""


def pack_frame(value: Any) -> bytes:
    """A frame; non-ASCII characters are escaped, so that lone surrogates survive."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD.pack(len(content)) + content


async def receive_frame(reader: asyncio.StreamReader) -> Any:
    """The next frame of a stream.

    Raises:
        FrameError: The stream ends, or the frame isn't valid.
    """
    try:
        length = _length(await reader.readexactly(_HEAD.size))
        return _value(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise FrameError("the stream has ended") from None


def read_frame(file: Readable) -> Any:
    """The next frame of a file; None at its end.

    Raises:
        FrameError: The file ends within a frame, or the frame isn't valid.
    """
    head = file.read(_HEAD.size)
    if not head:
        return None
    if len(head) < _HEAD.size:
        raise FrameError("the file ends within a frame")
    length = _length(head)
    content = file.read(length)
    if len(content) < length:
        raise FrameError("the file ends within a frame")
    return _value(content)


def _length(head: bytes) -> int:
    length: int = _HEAD.unpack(head)[0]
    if length > MOST_FRAME_BYTES:
        raise FrameError(f"a frame of {length:,} bytes; the most is {MOST_FRAME_BYTES:,}")
    return length


def _value(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # bad JSON or bad UTF-8, never quoted
        raise FrameError(f"a frame of {len(content):,} bytes isn't JSON") from None


_log = logging.getLogger(__name__)
_MODULE = "prefill_router_gateway.forecast.encoder_program"
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
        end: Set once it has ended.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.hello = _NOBODY
        self.end = asyncio.Event()
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
                await self.end.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill the process and whatever it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self.end.wait()
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
        self.end.set()

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
        options: Its options, from `plain_options`.
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
