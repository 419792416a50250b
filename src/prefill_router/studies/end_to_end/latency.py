"""How long routing takes before a target is asked.

A machine is faster at one moment than at the next, so systems that are compared take turns on every
prompt, the whole is repeated, and what is told has an interval over both rounds and prompts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import Prompt
from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.progress import Progress, SilentProgress

ROUNDS = 5
"""How often each prompt is decided on, unless told otherwise."""
_WARM = 3
"""Decisions before the first that counts: they load the encoder and fill caches."""


_STATISTICS: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda seconds: float(np.mean(seconds)),
    "median": lambda seconds: float(np.median(seconds)),
    "p95": lambda seconds: float(np.percentile(seconds, 95)),
}


@final
@dataclass(frozen=True)
class Latency:
    """What a decision takes.

    Attributes:
        seconds: Of each decision that was timed, one after the other, round by round; one number
            where it was given.
        source: Whether it was measured here.
        rounds: How often each prompt was decided on.
    """

    seconds: tuple[float, ...]
    source: Literal["measured", "given"] = "measured"
    rounds: int = 1

    def __post_init__(self) -> None:
        if not self.seconds or not all(np.isfinite(self.seconds)) or min(self.seconds) < 0:
            raise ConfigError("a routing latency must be seconds, 0 or more, of one decision or so")
        if self.rounds < 1 or len(self.seconds) % self.rounds:
            raise ConfigError(
                f"{len(self.seconds)} decisions can't be {self.rounds} rounds of the same prompts"
            )

    @property
    def mean(self) -> float:
        """The mean: what the sum over many queries goes by."""
        return _STATISTICS["mean"](self._table)

    def means(self, *, resamples: int, seed: int) -> Float[NDArray[np.float64], " resample"]:
        """The mean over rounds and prompts drawn anew; of equal shapes and seeds the same ones."""
        return self._drawn(resamples, seed)["mean"]

    def estimates(self, *, resamples: int, seed: int) -> dict[str, Estimate]:
        """`mean`, `median` and `p95` with their intervals; without any where it was given."""
        drawn = self._drawn(0 if self.source == "given" else resamples, seed)
        return {
            name: Estimate.of(statistic(self._table), drawn[name])
            for name, statistic in _STATISTICS.items()
        }

    def to_dict(self, *, resamples: int, seed: int) -> dict[str, Any]:
        """Plain values for JSON."""
        found = self.estimates(resamples=resamples, seed=seed)
        return {
            "source": self.source,
            "decisions": len(self.seconds) if self.source == "measured" else None,
            "rounds": self.rounds if self.source == "measured" else None,
            **{f"{name}_seconds": one.to_dict() for name, one in found.items()},
        }

    @property
    def _table(self) -> Float[NDArray[np.float64], "round prompt"]:
        return np.reshape(self.seconds, (self.rounds, -1))

    def _drawn(self, count: int, seed: int) -> dict[str, NDArray[np.float64]]:
        """Each statistic where rounds and prompts are drawn, each with replacement."""
        table, random = self._table, np.random.default_rng(seed)
        drawn = np.empty((count, len(_STATISTICS)))
        for row in drawn:
            chosen = (random.integers(0, size, size) for size in table.shape)
            picked = table[np.ix_(*chosen)]
            row[:] = [statistic(picked) for statistic in _STATISTICS.values()]
        return dict(zip(_STATISTICS, drawn.T, strict=True))


def time_routing(
    routes: Mapping[str, Callable[[Prompt], object]],
    prompts: Sequence[Prompt],
    *,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> dict[str, Latency]:
    """Time decisions, one request after the other, as a gateway without traffic would see them.

    The systems take turns on each prompt, each one first as often as the others.

    Args:
        routes: Decide on one prompt, by the system's name.
        prompts: What is asked; the first few are decided on once more before, untimed.
        rounds: How often all of it is repeated.
        progress: Shows how far it is.

    Raises:
        ConfigError: There is no prompt, or no round.
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds of decisions; {ROUNDS} are usual, 1 is the least")
    for route in routes.values():
        for prompt in prompts[:_WARM]:
            route(prompt)
    names, turn = list(routes), 0
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with (progress or SilentProgress()).task(
        "decisions", total=float(rounds * len(prompts))
    ) as advance:
        for _ in range(rounds):
            for prompt in prompts:
                for name in names[turn:] + names[:turn]:
                    began = time.perf_counter()
                    routes[name](prompt)
                    seconds[name].append(time.perf_counter() - began)
                turn = (turn + 1) % len(names)
                advance()
    return {name: Latency(tuple(taken), rounds=rounds) for name, taken in seconds.items()}
