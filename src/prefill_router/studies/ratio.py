"""Accuracy when a given share of the queries is forced on the strong target.

The paper's appendix on routing ratios: the queries are ordered by the router's probability for the
strong target, the first `n` of `N` go to it and the others to the router's argmax over the other
targets. Prices play no part, so this judges the probabilities alone.

Every `n` is computed exactly. In a bootstrap resample a query may stand several times; its copies
stand side by side in the order, so the sums are straight lines between queries and reading them in
between is exact too. A missing label counts neither as right nor as wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation.bootstrap import Band, Estimate, chunks, ones
from prefill_router.policy import Predictions
from prefill_router.progress import Progress, SilentProgress
from prefill_router.studies.ratio_order import BAND, RATIOS, RatioOrder, RatioReading, known_only

PAIR = ("apgr", "cpt_20", "cpt_50", "cpt_80")
"""RouteLLM's numbers, for two targets."""
Line = Float64[NDArray[np.float64], " point"]
Shares = Float64[NDArray[np.float64], " share"]


@final
@dataclass(frozen=True, eq=False)
class RatioCurve:
    """One router's accuracy over the share that is forced.

    Attributes:
        name: The router's.
        ratio: n / N, for n from 0 to N.
        accuracy: At each; NaN where nothing was measured.
        band_ratio: Where the band is known.
        lower: The band's lower end there; 95 % of the resamples' curves stay within the band from
            end to end (`evaluation.bootstrap.Band`). NaN without resamples.
        upper: Its upper end.
        at: The accuracy at each of `RATIOS`, with intervals.
        summary: `mean_accuracy` over all shares, and `lift`, by how much that is above forcing the
            same shares at random; for two targets also RouteLLM's `apgr` and `cpt_20`, `cpt_50`,
            `cpt_80`.
        difference: Each number of `at` (by position) minus the first router's; empty for the first.
        summary_difference: Each of `summary` minus the first router's; empty for the first.
    """

    name: str
    ratio: Line
    accuracy: Line
    band_ratio: Shares
    lower: Shares
    upper: Shares
    at: tuple[Estimate, ...]
    summary: Mapping[str, Estimate]
    difference: tuple[Estimate, ...] = ()
    summary_difference: Mapping[str, Estimate] | None = None

    @property
    def best(self) -> tuple[float, float]:
        """The share with the highest accuracy, the lowest of several, and that accuracy."""
        place = int(np.nanargmax(self.accuracy))
        return float(self.ratio[place]), float(self.accuracy[place])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        shares = [f"{ratio:g}" for ratio in RATIOS]
        share, accuracy = self.best
        return {
            "at": {r: one.to_dict() for r, one in zip(shares, self.at, strict=True)},
            "best": {"ratio": share, "accuracy": accuracy},
            "summary": {name: one.to_dict() for name, one in self.summary.items()},
            "minus_first": {
                r: one.to_dict() for r, one in zip(shares, self.difference, strict=False)
            },
            "summary_minus_first": {
                name: one.to_dict() for name, one in (self.summary_difference or {}).items()
            },
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per share: the exact points, then those of the band."""
        exact = zip(self.ratio.tolist(), self.accuracy.tolist(), strict=True)
        band = zip(self.band_ratio.tolist(), self.lower.tolist(), self.upper.tolist(), strict=True)
        nothing = float("nan")
        common = {"router": self.name}
        return [
            {**common, "ratio": r, "accuracy": a, "lower": nothing, "upper": nothing}
            for r, a in exact
        ] + [
            {**common, "ratio": r, "accuracy": nothing, "lower": low, "upper": high}
            for r, low, high in band
            if np.isfinite(low)
        ]


@final
@dataclass(frozen=True, eq=False)
class RatioStudy:
    """The curves of several routers on the same queries.

    Attributes:
        strong: The target that queries are forced on.
        strong_accuracy: Its accuracy on these queries, where all curves end.
        curves: One per router; differences are from the first.
        queries: How many there are.
        resamples: How many resamples the intervals come from.
        seed: What they were drawn with.
    """

    strong: str
    strong_accuracy: float
    curves: tuple[RatioCurve, ...]
    queries: int
    resamples: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "strong": self.strong,
            "strong_accuracy": self.strong_accuracy,
            "queries": self.queries,
            "resamples": self.resamples,
            "seed": self.seed,
            "ratios": list(RATIOS),
            "routers": {one.name: one.to_dict() for one in self.curves},
        }

    def rows(self) -> list[dict[str, Any]]:
        """The curves' points."""
        return [row for one in self.curves for row in one.rows()]


def strongest(dataset: RoutingDataset) -> str:
    """The target with the highest share of right answers where measured; the first of equals.

    Raises:
        DataError: Nothing was measured.
    """
    known = ~np.isnan(dataset.correct)
    if not known.any():
        raise DataError("no answer has a label, so no target can be called the strong one")
    right = np.where(known, dataset.correct, 0).sum(axis=0)
    mean = np.where(known.any(axis=0), right / np.maximum(known.sum(axis=0), 1), -1)
    return dataset.pool.names[int(mean.argmax())]


def routing_ratio(
    systems: Mapping[str, Predictions],
    dataset: RoutingDataset,
    *,
    strong: str,
    resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> RatioStudy:
    """Force every share of the queries on the strong target, by each router's own order.

    Args:
        systems: Predictions by name, of the same queries and targets.
        dataset: What happened.
        strong: The strong target; `strongest` of the train part, or of the test part as the paper.
        resamples: Bootstrap resamples, the same for all; 0 for no intervals.
        seed: Another seed, other resamples.
        progress: Shows how far it is.

    Raises:
        ConfigError: There is no system, only one target, or none of the strong one's name.
        DataError: The systems' queries differ, the dataset lacks some, or nothing was measured.
    """
    if not systems:
        raise ConfigError("there is no router; name at least one")
    first = next(iter(systems.values()))
    if strong not in first.targets or len(first.targets) < 2:
        raise ConfigError(
            f"the strong target is {strong!r}, the router has {list(first.targets)}; name one of "
            "at least two"
        )
    data = dataset.select(first.query_ids, targets=first.targets)
    if np.isnan(data.correct).all():
        raise DataError("none of these queries has a label; give scored answers")
    orders = [
        RatioOrder.of(one.select(first.query_ids, targets=first.targets), data.correct, strong)
        for one in systems.values()
    ]
    tables: list[list[RatioReading]] = [[] for _ in orders]
    with (progress or SilentProgress()).task("resamples", total=float(resamples)) as advance:
        for weights in chunks(len(data), count=resamples, seed=seed, width=4 * len(data)):
            for found, order in zip(tables, orders, strict=True):
                found.append(order.read(weights))
            advance(len(weights))
    curves: list[RatioCurve] = []
    point = [order.read(ones(len(data))) for order in orders]
    drawn = (
        [RatioReading.together(parts) for parts in tables] if resamples else [None] * len(orders)
    )
    for i, name in enumerate(systems):
        against = None if not i else (point[0], drawn[0])
        curves.append(_curve(name, orders[i], point[i], drawn[i], against))
    end = float(curves[0].accuracy[-1])
    return RatioStudy(strong, end, tuple(curves), len(data), resamples, seed)


def _curve(
    name: str,
    order: RatioOrder,
    point: RatioReading,
    drawn: RatioReading | None,
    against: tuple[RatioReading, RatioReading | None] | None,
) -> RatioCurve:
    share, right, known = order.points(ones(len(order.order)))
    none = np.full((0, BAND + 1), np.nan)
    band = Band.of(np.linspace(0, 1, BAND + 1), none if drawn is None else drawn.band)
    difference: tuple[Estimate, ...] = ()
    summary_difference = None
    if against is not None:
        first, resampled = against
        both = None if drawn is None or resampled is None else (drawn, resampled)
        moved = None if both is None else both[0].at - both[1].at
        difference = _estimates(point.at - first.at, moved)
        summary_difference = {
            n: _estimate(
                float(value[0] - first.summary[n][0]),
                None if both is None else both[0].summary[n] - both[1].summary[n],
            )
            for n, value in point.summary.items()
        }
    return RatioCurve(
        name,
        share[0],
        (right / known_only(known))[0],
        band.x,
        band.lower,
        band.upper,
        _estimates(point.at, None if drawn is None else drawn.at),
        {
            n: _estimate(float(value[0]), None if drawn is None else drawn.summary[n])
            for n, value in point.summary.items()
        },
        difference,
        summary_difference,
    )


def _estimates(
    value: NDArray[np.float64], drawn: NDArray[np.float64] | None
) -> tuple[Estimate, ...]:
    columns = range(value.shape[1])
    return tuple(
        _estimate(float(value[0, i]), None if drawn is None else drawn[:, i]) for i in columns
    )


def _estimate(value: float, drawn: NDArray[np.float64] | None) -> Estimate:
    return Estimate.of(value, np.zeros(0) if drawn is None else drawn)
