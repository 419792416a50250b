"""The systems of an end-to-end comparison, and how long their decisions and answers take.

A router's encoder costs its prefill, charged by the token or by the hour of the machine. It is paid
for every query at every setting, so each operating point moves by the same cost, and P-AUCCC may
change. There are two ways to compute it then:

`charged`
    The anchors stay the single targets' mean costs, since using a single target needs no encoder.
    This is what a user pays.
`translated`
    The anchors move by the same amount, as in the paper, which translates the whole curve. With
    linear cost this changes nothing; with inverse cost it changes P-AUCCC slightly.

Decisions are timed on this machine. Its speed fluctuates, so compared systems take turns on every
prompt, all prompts are timed in several rounds, and intervals are over both rounds and prompts.

The speeds of targets are published or measured. `speeds.yaml`::

    targets:
      small: {ttft_seconds: 0.4, tokens_per_second: 180}
      large: {ttft_seconds: 1.1, tokens_per_second: 60}

or a CSV file with the columns `target`, `ttft_seconds` and `tokens_per_second`.
"""

import csv
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.data import Prompt, RoutingDataset
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.evaluation import (
    Anchors,
    Axis,
    Estimate,
    PerResample,
    Points,
    Scorer,
    Trial,
    Weights,
    divide,
    known_mean,
    mean_over,
    padded_area,
    single_points,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.yaml_files import read_yaml

ROUNDS = 5
"""How often each prompt is timed, by default."""
_WARM = 3
"""Number of warm-up decisions, which load the encoder and fill caches."""


_STATISTICS: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda seconds: float(np.mean(seconds)),
    "median": lambda seconds: float(np.median(seconds)),
    "p95": lambda seconds: float(np.percentile(seconds, 95)),
}


@final
@dataclass(frozen=True)
class Latency:
    """The latency of a decision.

    Attributes:
        seconds: Seconds of each timed decision, round by round; a single number where the latency
            was given.
        source: Whether it was measured here or given.
        rounds: How often each prompt was timed.
    """

    seconds: tuple[float, ...]
    source: Literal["measured", "given"] = "measured"
    rounds: int = 1

    def __post_init__(self) -> None:
        if not self.seconds or not all(np.isfinite(self.seconds)) or min(self.seconds) < 0:
            raise ConfigError("a routing latency needs one or more numbers of seconds, 0 or more")
        if self.rounds < 1 or len(self.seconds) % self.rounds:
            raise ConfigError(
                f"{len(self.seconds)} decisions can't be {self.rounds} rounds of the same prompts"
            )

    @property
    def mean(self) -> float:
        """The mean latency, seconds."""
        return _STATISTICS["mean"](self._table)

    def means(self, *, resamples: int, seed: int) -> Float[NDArray[np.float64], " resample"]:
        """Bootstrap means over rounds and prompts; equal shapes and seeds give the same draws."""
        return self._resample(resamples, seed)["mean"]

    def estimates(self, *, resamples: int, seed: int) -> dict[str, Estimate]:
        """`mean`, `median` and `p95` with their intervals; without intervals if it was given."""
        draws = self._resample(0 if self.source == "given" else resamples, seed)
        return {
            name: Estimate.of(statistic(self._table), draws[name])
            for name, statistic in _STATISTICS.items()
        }

    def to_dict(self, *, resamples: int, seed: int) -> dict[str, Any]:
        """Plain values for JSON."""
        estimates = self.estimates(resamples=resamples, seed=seed)
        return {
            "source": self.source,
            "decisions": len(self.seconds) if self.source == "measured" else None,
            "rounds": self.rounds if self.source == "measured" else None,
            **{f"{name}_seconds": estimate.to_dict() for name, estimate in estimates.items()},
        }

    @property
    def _table(self) -> Float[NDArray[np.float64], "round prompt"]:
        return np.reshape(self.seconds, (self.rounds, -1))

    def _resample(self, count: int, seed: int) -> dict[str, NDArray[np.float64]]:
        """Each statistic over rounds and prompts, both drawn with replacement."""
        table, random = self._table, np.random.default_rng(seed)
        draws = np.empty((count, len(_STATISTICS)))
        for row in draws:
            chosen = (random.integers(0, size, size) for size in table.shape)
            picked = table[np.ix_(*chosen)]
            row[:] = [statistic(picked) for statistic in _STATISTICS.values()]
        return dict(zip(_STATISTICS, draws.T, strict=True))


def time_routing(
    routes: Mapping[str, Callable[[Prompt], object]],
    prompts: Sequence[Prompt],
    *,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> dict[str, Latency]:
    """Time decisions, one request at a time, as in a gateway without other traffic.

    The systems take turns on each prompt, and each goes first equally often.

    Args:
        routes: Functions that decide on one prompt, by the system's name.
        prompts: The prompts; the first few also serve as an untimed warm-up.
        rounds: How often all prompts are timed.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: There is no prompt, or no round.
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds of decisions; give at least 1 ({ROUNDS} is usual)")
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
    return {name: Latency(tuple(timings), rounds=rounds) for name, timings in seconds.items()}


PerCell = Float[NDArray[np.float64], "query target"]
_COLUMNS = ("ttft_seconds", "tokens_per_second")


@final
@dataclass(frozen=True)
class Speed:
    """The speed of a target.

    Attributes:
        ttft_seconds: Seconds from the request to the first token.
        tokens_per_second: Output tokens per second from then on, reasoning included.
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
        FormatError: The file is missing, malformed, or has invalid values.
    """
    try:
        rows = _read_csv(path) if path.suffix.lower() == ".csv" else _read_yaml(path)
    except FileNotFoundError:
        raise FormatError("no such file", file=path) from None
    except (ValueError, RecursionError, csv.Error, ConfigError) as error:
        detail = " ".join(str(error).split())
        raise FormatError(f"isn't a file of speeds: {detail}", file=path) from None
    if not rows:
        raise FormatError("it names no target", file=path)
    return {str(name): _read_speed(str(name), row, path) for name, row in rows.items()}


def answer_seconds(dataset: RoutingDataset, speeds: Mapping[str, Speed]) -> PerCell:
    """Duration of each recorded answer, seconds: TTFT plus its output tokens at the target's speed.

    NaN where the target's speed or the answer's length isn't known.

    Args:
        dataset: Answers with their output tokens.
        speeds: The speeds by target.
    """
    known_speeds = [speeds.get(name) for name in dataset.pool.names]
    first = np.array([np.nan if speed is None else speed.ttft_seconds for speed in known_speeds])
    rate = np.array(
        [np.nan if speed is None else speed.tokens_per_second for speed in known_speeds]
    )
    seconds: PerCell = first + dataset.output_tokens / rate
    return seconds


def _read_speed(name: str, row: Any, path: Path) -> Speed:
    if not isinstance(row, Mapping) or set(row) != set(_COLUMNS):
        raise FormatError(f"target {name!r} must have {' and '.join(_COLUMNS)}", file=path)
    try:
        return Speed(*(float(row[column]) for column in _COLUMNS))
    except (TypeError, ValueError, ConfigError) as error:
        raise FormatError(f"target {name!r}: {error}", file=path) from None


def _read_yaml(path: Path) -> Mapping[Any, Any]:
    value = read_yaml(path)
    targets = value.get("targets") if isinstance(value, Mapping) else None
    if not isinstance(targets, Mapping):
        raise ValueError("it must hold targets, by name")
    return targets


def _read_csv(path: Path) -> Mapping[Any, Any]:
    rows: dict[str, Mapping[str, Any]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        lacking = {"target", *_COLUMNS} - set(reader.fieldnames or ())
        if lacking:
            raise ValueError(f"it lacks the columns {sorted(lacking)}")
        for row in reader:
            if row["target"] in rows:
                raise ValueError(f"target {row['target']!r} is repeated")
            rows[row["target"]] = {column: row[column] for column in _COLUMNS}
    return rows


PerQuery = Float[NDArray[np.float64], " query"]


@final
@dataclass(frozen=True, eq=False)
class Contender:
    """A router with the cost of its encoders and the duration of decisions and answers.

    Attributes:
        name: Its name in tables.
        trial: Its predictions, labels and observed costs.
        answer_seconds: Duration of each target's answer, from the request to its end; NaN where
            unknown.
        encoder_cost: Cost of encoding each query, US dollars.
        latency: Latency of a decision; None where unknown.
    """

    name: str
    trial: Trial
    answer_seconds: PerCell
    encoder_cost: PerQuery
    latency: Latency | None

    def __post_init__(self) -> None:
        shape = self.trial.correct.shape
        if self.answer_seconds.shape != shape or self.encoder_cost.shape != shape[:1]:
            raise DataError(
                f"{self.name}: answers' seconds have the shape {self.answer_seconds.shape} and "
                f"encoder costs {self.encoder_cost.shape}; the trial has {shape}"
            )

    def at(self, lam: float) -> "ContenderUse":
        """The outcome of using the router at one setting."""
        choice = self.trial.path.at(lam)
        # A policy that calls several targets in turn pays for all of them and waits for each.
        waits = self.trial.policy.charge(
            self.answer_seconds, self.trial.cost, targets=self.trial.targets
        )
        return ContenderUse(
            self.trial.of_choice(self.trial.correct, choice),
            self.trial.of_choice(self.trial.paid, choice),
            self.encoder_cost,
            self.trial.of_choice(waits, choice),
            _count_shares(choice, len(self.trial.targets)),
        )

    def always(self, target: str) -> "ContenderUse":
        """The outcome of using one target alone, without routing."""
        k = self.trial.targets.index(target)
        choice = np.full(len(self.trial), k, dtype=np.int64)
        return ContenderUse(
            self.trial.correct[:, k],
            self.trial.observed_cost[:, k],
            np.zeros(len(self.trial)),
            self.answer_seconds[:, k],
            _count_shares(choice, len(self.trial.targets)),
        )


@final
@dataclass(frozen=True, eq=False)
class ContenderUse:
    """The outcome of each query when a system is used at one setting; NaN where unknown.

    Attributes:
        label: Label of the answer.
        target_cost: Cost of the targets, US dollars.
        encoder_cost: Cost of encoding, US dollars.
        answer_seconds: Duration of the targets' answers, seconds.
        shares: The share of queries that each target answers.
    """

    label: PerQuery
    target_cost: PerQuery
    encoder_cost: PerQuery
    answer_seconds: PerQuery
    shares: Float[NDArray[np.float64], " target"]

    def numbers(self, weights: Weights, routing: PerResample) -> dict[str, PerResample]:
        """The metrics in each resample, by name (`study.NUMBERS`); costs are per query.

        Args:
            weights: How often each query counts.
            routing: Mean latency of a decision, seconds; the same for every query.
        """
        columns = (self.label, self.target_cost, self.encoder_cost, self.answer_seconds)
        accuracy, target, encoder, answer = known_mean(weights, np.stack(columns, axis=1)).T
        total = target + encoder
        return {
            "accuracy": accuracy,
            "target_cost": target,
            "encoder_cost": encoder,
            "total_cost": total,
            "encoder_share": divide(encoder, total),
            "answer_seconds": answer,
            "routing_seconds": routing,
            "total_seconds": answer + routing,
            "routing_share": divide(routing, answer + routing),
        }


def _count_shares(choice: Int[NDArray[np.int64], " query"], targets: int) -> NDArray[np.float64]:
    return np.bincount(choice, minlength=targets) / len(choice)


AXES: tuple[Axis, ...] = ("inverse", "linear")


@final
@dataclass(frozen=True, eq=False)
class ChargedPlane:
    """A contender's curve, sorted once.

    Attributes:
        contender: The system.
        scorer: The scorer of its trial.
    """

    contender: Contender
    scorer: Scorer

    @classmethod
    def of(cls, contender: Contender) -> "ChargedPlane":
        """Sort a contender's trial."""
        return cls(contender, Scorer(contender.trial))

    def areas(self, weights: Weights) -> dict[str, PerResample]:
        """P-AUCCC in each resample, by variant and axis: `p_auccc`, `charged`, `translated`."""
        trial = self.contender.trial
        weights = weights * trial.compared
        points = self.scorer.read(weights).rising
        singles = single_points(
            known_mean(weights, trial.single_label), known_mean(weights, trial.single_cost)
        )
        anchors = Anchors.of(singles.cost, singles.accuracy, mean_over(weights, trial.best_label))
        extra = mean_over(weights, self.contender.encoder_cost)
        charged_points = replace(points, cost=points.cost + extra[:, None])
        moved_anchors = replace(
            anchors, cost_low=anchors.cost_low + extra, cost_high=anchors.cost_high + extra
        )
        areas = {}
        for axis in AXES:
            end = "" if axis == "inverse" else "_linear"
            areas[f"p_auccc{end}"] = _measure_area(points, anchors, axis)
            areas[f"charged{end}"] = _measure_area(charged_points, anchors, axis)
            areas[f"translated{end}"] = _measure_area(charged_points, moved_anchors, axis)
        return areas


def _measure_area(points: Points, anchors: Anchors, axis: Axis) -> PerResample:
    return padded_area(anchors.cheapness(points.cost, axis=axis), anchors.height(points.accuracy))
