"""What the gateway and the encoder's process say to each other.

Through the pipes go frames: four bytes of length, big end first, then JSON in UTF-8. The JSON holds
options, prompts and forecasts as plain values.
"""

import asyncio
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.data import Message, Prompt
from prefill_router.errors import ConfigError
from prefill_router.gateway.types import FALLBACK_REASONS, FallbackReason
from prefill_router.router import EncoderSources, Forecast

ForecastResult = Forecast | FallbackReason
"""A forecast, or why there is none."""
PerTarget = Float64[NDArray[np.float64], " target"]
_REASONS: dict[str, FallbackReason] = {reason: reason for reason in FALLBACK_REASONS}


@final
@dataclass(frozen=True, kw_only=True)
class WorkerHello:
    """What the process says once it is ready.

    Attributes:
        fingerprint: Of the router that it has loaded.
        targets: The router's targets, in order.
        encoders: The names of its encoders.
        seconds: How long it took to load and to warm up.
        prompt_seconds: How long one prompt of some 600 words took, once warm.
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
    def from_dict(cls, value: Any) -> "WorkerHello":
        """That of `to_dict`.

        Raises:
            FrameError: It is something else.
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
            raise FrameError("that is no greeting") from None


def plain_options(
    folder: Path, sources: EncoderSources, *, threads: int | None, reuse_bytes: int
) -> dict[str, Any]:
    """What the process is told first.

    Args:
        folder: The router's.
        sources: Where its encoders are found.
        threads: How many it computes with; None lets it choose.
        reuse_bytes: How much of shared beginnings it keeps; 0 for nothing.

    Raises:
        ConfigError: An encoder that is loaded here can't be given to another process.
    """
    if sources.loaded:
        raise ConfigError(
            "the encoder runs in a process of its own and is loaded there: name its folder instead "
            "of giving a loaded one"
        )
    return {
        "router": str(folder.absolute()),
        "folders": {name: str(Path(place).absolute()) for name, place in sources.folders.items()},
        "device": sources.device,
        "trust_remote_code": sources.trust_remote_code,
        "threads": threads,
        "reuse_bytes": reuse_bytes,
    }


def sources_of(options: Any) -> EncoderSources:
    """The sources that `plain_options` tells of."""
    return EncoderSources(
        folders=options["folders"],
        device=options["device"],
        trust_remote_code=options["trust_remote_code"],
    )


def plain_prompt(prompt: Prompt) -> Any:
    """A text as it is, messages as pairs."""
    return prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt]


def prompt_of(value: Any) -> Prompt:
    """The prompt of `plain_prompt`."""
    return value if isinstance(value, str) else tuple(Message(role, text) for role, text in value)


def plain_found(found: ForecastResult) -> Any:
    """A reason as it is, a forecast as a dictionary."""
    if isinstance(found, str):
        return found
    return {
        "correctness": found.correctness.tolist(),
        "tokens": found.tokens,
        "truncated": found.truncated,
        "novelty": found.novelty,
        "bins": list(found.bins),
        "output": _plain(found.output),
        "output_high": _plain(found.output_high),
    }


def _plain(amounts: PerTarget | None) -> list[float | None] | None:
    return None if amounts is None else [None if np.isnan(n) else n for n in amounts.tolist()]


def _amounts(value: Any, *, targets: int) -> PerTarget | None:
    if value is None:
        return None
    amounts = np.array(value, dtype=np.float64)  # None becomes NaN
    if amounts.shape != (targets,) or (amounts < 0).any() or np.isinf(amounts).any():
        raise ValueError("these are no amounts of output")
    amounts.flags.writeable = False
    return amounts


def found_of(values: Any, *, count: int, targets: int) -> Sequence[ForecastResult]:
    """What was found of each prompt of a batch.

    Raises:
        FrameError: It isn't what `plain_found` gives, for so many prompts and targets.
    """
    try:
        found = [_found(value) for value in values]
    except (LookupError, TypeError, ValueError):
        raise FrameError("that is no list of forecasts") from None
    shapes = {one.correctness.shape for one in found if isinstance(one, Forecast)}
    if len(found) != count or not shapes <= {(targets,)}:
        raise FrameError(f"these aren't {count} forecasts of {targets} targets")
    return found


def _found(value: Any) -> ForecastResult:
    if isinstance(value, str):
        return _REASONS[value]
    correctness = np.array(value["correctness"], dtype=np.float64)
    correctness.flags.writeable = False  # requests share what is remembered
    return Forecast(
        correctness=correctness,
        tokens=int(value["tokens"]),
        truncated=bool(value["truncated"]),
        novelty=None if value["novelty"] is None else float(value["novelty"]),
        bins=tuple(map(int, value["bins"])),
        output=_amounts(value["output"], targets=len(correctness)),
        output_high=_amounts(value["output_high"], targets=len(correctness)),
    )


_HEAD = struct.Struct(">I")
MOST_FRAME_BYTES = 128 << 20
"""A longer frame is none of ours."""


@runtime_checkable
class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer at the end."""
        ...


class FrameError(ValueError):
    """What came is no whole frame."""


def pack_frame(value: Any) -> bytes:
    """A frame; what isn't ASCII is escaped, so that lone surrogates pass as well."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD.pack(len(content)) + content


async def receive_frame(reader: asyncio.StreamReader) -> Any:
    """The next frame of a stream.

    Raises:
        FrameError: The stream ends, or it is no frame.
    """
    try:
        length = _length(await reader.readexactly(_HEAD.size))
        return _value(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise FrameError("the stream has ended") from None


def read_frame(file: Readable) -> Any:
    """The next frame of a file; None at its end.

    Raises:
        FrameError: It ends within a frame, or it is no frame.
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
        raise FrameError(f"a frame of {length:,} bytes; at most {MOST_FRAME_BYTES:,} are taken")
    return length


def _value(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # covers bad JSON and bad UTF-8; neither is quoted
        raise FrameError(f"a frame of {len(content):,} bytes isn't JSON") from None
