"""How long routing takes before a target is asked."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from prefill_router.data import Prompt
from prefill_router.errors import ConfigError
from prefill_router.progress import Progress, SilentProgress

_WARM = 3
"""Decisions before the first that counts: they load the encoder and fill caches."""


@final
@dataclass(frozen=True)
class Latency:
    """What a decision takes.

    Attributes:
        seconds: Of each decision that was timed, one after the other; one number where it was
            given.
        source: Whether it was measured here.
    """

    seconds: tuple[float, ...]
    source: Literal["measured", "given"] = "measured"

    def __post_init__(self) -> None:
        if not self.seconds or not all(np.isfinite(self.seconds)) or min(self.seconds) < 0:
            raise ConfigError("a routing latency must be seconds, 0 or more, of one decision or so")

    @property
    def mean(self) -> float:
        """The mean: what the sum over many queries goes by."""
        return float(np.mean(self.seconds))

    @property
    def median(self) -> float:
        """The median."""
        return float(np.median(self.seconds))

    @property
    def p95(self) -> float:
        """The 95th percentile."""
        return float(np.percentile(self.seconds, 95))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "source": self.source,
            "decisions": len(self.seconds) if self.source == "measured" else None,
            "mean_seconds": self.mean,
            "median_seconds": self.median,
            "p95_seconds": self.p95,
        }


def time_routing(
    route: Callable[[Prompt], object],
    prompts: Sequence[Prompt],
    *,
    progress: Progress | None = None,
) -> Latency:
    """Time decisions, one request after the other, as a gateway without traffic would see them.

    Args:
        route: Decides on one prompt.
        prompts: What is asked; the first few are decided on once more before, untimed.
        progress: Shows how far it is.

    Raises:
        ConfigError: There is no prompt.
    """
    for prompt in prompts[:_WARM]:
        route(prompt)
    seconds = []
    with (progress or SilentProgress()).task("decisions", total=float(len(prompts))) as advance:
        for prompt in prompts:
            began = time.perf_counter()
            route(prompt)
            seconds.append(time.perf_counter() - began)
            advance()
    return Latency(tuple(seconds))
