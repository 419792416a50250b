"""How long routing takes before a target is asked, and how long the targets' answers take.

A machine is faster at one moment than at the next, so systems that are compared take turns on every
prompt, the whole is repeated, and what is told has an interval over both rounds and prompts.

How fast targets answer is published or measured. `speeds.yaml`::

    targets:
      small: {ttft_seconds: 0.4, tokens_per_second: 180}
      large: {ttft_seconds: 1.1, tokens_per_second: 60}

or a CSV file with the columns `target`, `ttft_seconds` and `tokens_per_second`.
"""

import csv
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import Prompt, RoutingDataset
from prefill_router.errors import ConfigError, FormatError
from prefill_router.evaluation import Estimate
from prefill_router.progress import Progress, SilentProgress
from prefill_router.yaml_files import read_yaml

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


PerCell = Float[NDArray[np.float64], "query target"]
_COLUMNS = ("ttft_seconds", "tokens_per_second")


@final
@dataclass(frozen=True)
class Speed:
    """How fast a target answers.

    Attributes:
        ttft_seconds: From the request to the first token.
        tokens_per_second: Output tokens from then on, reasoning included.
    """

    ttft_seconds: float
    tokens_per_second: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.ttft_seconds) and self.ttft_seconds >= 0):
            raise ConfigError(f"ttft_seconds is {self.ttft_seconds}; it must be seconds, 0 or more")
        if not (math.isfinite(self.tokens_per_second) and self.tokens_per_second > 0):
            raise ConfigError(
                f"tokens_per_second is {self.tokens_per_second}; it must be a number above 0"
            )


def read_speeds(path: Path) -> dict[str, Speed]:
    """Read the speeds in a YAML or CSV file, by target.

    Raises:
        FormatError: The file is missing, malformed, or says something impossible.
    """
    try:
        rows = _csv(path) if path.suffix.lower() == ".csv" else _yaml(path)
    except FileNotFoundError:
        raise FormatError("no such file", file=path) from None
    except (ValueError, RecursionError, csv.Error, ConfigError) as error:
        told = " ".join(str(error).split())
        raise FormatError(f"isn't a file of speeds: {told}", file=path) from None
    if not rows:
        raise FormatError("it names no target", file=path)
    return {str(name): _speed(str(name), row, path) for name, row in rows.items()}


def answer_seconds(dataset: RoutingDataset, speeds: Mapping[str, Speed]) -> PerCell:
    """How long each recorded answer takes: TTFT and its observed output at the target's speed.

    NaN where the target's speed or the answer's length isn't known.

    Args:
        dataset: Answers with their output tokens.
        speeds: By target.
    """
    known = [speeds.get(name) for name in dataset.pool.names]
    first = np.array([np.nan if one is None else one.ttft_seconds for one in known])
    rate = np.array([np.nan if one is None else one.tokens_per_second for one in known])
    seconds: PerCell = first + dataset.output_tokens / rate
    return seconds


def _speed(name: str, row: Any, path: Path) -> Speed:
    if not isinstance(row, Mapping) or set(row) != set(_COLUMNS):
        raise FormatError(f"target {name!r} must have {' and '.join(_COLUMNS)}", file=path)
    try:
        return Speed(*(float(row[column]) for column in _COLUMNS))
    except (TypeError, ValueError, ConfigError) as error:
        raise FormatError(f"target {name!r}: {error}", file=path) from None


def _yaml(path: Path) -> Mapping[Any, Any]:
    value = read_yaml(path)
    targets = value.get("targets") if isinstance(value, Mapping) else None
    if not isinstance(targets, Mapping):
        raise ValueError("it must hold targets, by name")
    return targets


def _csv(path: Path) -> Mapping[Any, Any]:
    rows: dict[str, Mapping[str, Any]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        lacking = {"target", *_COLUMNS} - set(reader.fieldnames or ())
        if lacking:
            raise ValueError(f"it lacks the columns {sorted(lacking)}")
        for row in reader:
            if row["target"] in rows:
                raise ValueError(f"target {row['target']!r} stands in it twice")
            rows[row["target"]] = {column: row[column] for column in _COLUMNS}
    return rows
