"""Accuracy when a given share of the queries is sent to the strong target.

The paper's appendix on routing ratios. The queries are ordered by the router's probability for the
strong target. The first `n` of `N` go to it, the others to the router's argmax over the other
targets. Prices play no part, so this judges the probabilities alone.

Every `n` is computed exactly. In a bootstrap resample a query may occur several times. Its copies
are adjacent in the order, so the running sums are linear between queries and interpolation is exact
too. A missing label counts neither as right nor as wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from prefill_router.comparison import RecipeFailure, warnings
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import (
    CPT,
    SAME,
    Band,
    Estimate,
    PerResample,
    Weights,
    chunks,
    divide,
    estimates_to_dict,
    interval,
    ones,
    worded,
)
from prefill_router.plotting import Figure
from prefill_router.policy import Predictions
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import (
    BOLD,
    INK,
    QUIET,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    estimate_cell,
    flat,
    legend_below,
    new_figure,
    significance,
    stroke,
    style,
)
from prefill_router_lab.studies.options import RatioOptions

RATIOS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
"""The shares shown in tables."""
BAND = 200
"""Number of steps of the share at which bands are drawn."""
ShareTable = Float[NDArray[np.float64], "resample _point"]


@final
@dataclass(frozen=True, eq=False)
class RatioReading:
    """One router's accuracy by share, in some resamples.

    Attributes:
        band: Accuracy at `BAND` + 1 evenly spaced shares from 0 to 1.
        at: Accuracy at `RATIOS`.
        summary: Means over all shares, by name.
    """

    band: ShareTable
    at: ShareTable
    summary: Mapping[str, PerResample]

    @classmethod
    def together(cls, parts: Sequence["RatioReading"]) -> "RatioReading":
        """Concatenate the resamples of all parts."""
        summary = {n: np.concatenate([p.summary[n] for p in parts]) for n in parts[0].summary}
        band, at = (np.concatenate([getattr(p, n) for p in parts]) for n in ("band", "at"))
        return cls(band, at, summary)


@final
@dataclass(frozen=True, eq=False)
class RatioOrder:
    """A router's order of the queries, the most probable for the strong target first.

    Attributes:
        order: Indices of the queries.
        forced: In this order, the strong target's label, 0 where missing, and whether it is known.
        free: The same for the router's choice among the other targets.
        targets: Number of targets.
    """

    order: NDArray[np.int64]
    forced: Float64[NDArray[np.float64], "2 query"]
    free: Float64[NDArray[np.float64], "2 query"]
    targets: int

    @classmethod
    def of(
        cls, predictions: Predictions, correct: NDArray[np.float64], strong: str
    ) -> "RatioOrder":
        """The order of a router's predictions.

        Args:
            predictions: Predictions for all queries.
            correct: The labels, in the same rows and columns.
            strong: The strong target.
        """
        column = predictions.targets.index(strong)
        # Stable: queries with equal probabilities keep their order.
        order = np.argsort(-predictions.correctness[:, column], kind="stable")
        others = predictions.correctness.copy()
        others[:, column] = -1
        chosen = others.argmax(axis=1)
        labels = [correct[order, column], correct[order, chosen[order]]]
        forced, free = (
            np.stack([np.nan_to_num(label), ~np.isnan(label)]).astype(np.float64)
            for label in labels
        )
        return cls(order, forced, free, len(predictions.targets))

    def points(self, weights: Weights) -> tuple[ShareTable, ShareTable, ShareTable]:
        """Running share, right and known after each query of the order, from none to all."""
        weights_in_order = weights[:, self.order]
        share = _sum_running(weights_in_order) / weights_in_order.sum(axis=1, keepdims=True)
        right, labelled = (
            (weights_in_order * self.free[i]).sum(axis=1, keepdims=True)
            + _sum_running(weights_in_order * (self.forced[i] - self.free[i]))
            for i in range(2)
        )
        return share, right, labelled

    def read(self, weights: Weights) -> RatioReading:
        """The reported numbers in each resample."""
        share, right, labelled = self.points(weights)
        grid = np.concatenate([np.linspace(0, 1, BAND + 1), RATIOS])
        rows = zip(share, right, labelled, strict=True)
        accuracies = [
            np.interp(grid, x, up) / mask_zeros(np.interp(grid, x, down)) for x, up, down in rows
        ]
        table = np.stack(accuracies)
        accuracy = right / mask_zeros(labelled)
        mean = _average_over_shares(share, accuracy)
        summary = {
            "mean_accuracy": mean,
            "lift": mean - (accuracy[:, 0] + accuracy[:, -1]) / 2,
        }
        if self.targets == 2:
            summary |= _measure_pair(share, accuracy)
        return RatioReading(table[:, : BAND + 1], table[:, BAND + 1 :], summary)


def _sum_running(values: ShareTable) -> ShareTable:
    total = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=total[:, 1:])
    return total


def mask_zeros(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace counts of 0 by NaN, so that quotients by them aren't defined."""
    return np.where(counts > SAME, counts, np.nan)


def _average_over_shares(share: ShareTable, accuracy: ShareTable) -> PerResample:
    """The mean of the accuracy over all shares."""
    slices = np.diff(share, axis=1) * (accuracy[:, 1:] + accuracy[:, :-1]) / 2
    area: PerResample = slices.sum(axis=1)
    return area


def _measure_pair(share: ShareTable, accuracy: ShareTable) -> dict[str, PerResample]:
    """RouteLLM's APGR and CPT: the part of the gap that is closed, and the share that it takes."""
    weak, strong = accuracy[:, :1], accuracy[:, -1:]
    gap = np.where(strong - weak > SAME, strong - weak, np.nan)
    gap_share = (accuracy - weak) / gap
    rows = np.arange(len(share))
    numbers = {"apgr": _average_over_shares(share, gap_share)}
    for name, part in CPT.items():
        after = np.maximum((gap_share >= part).argmax(axis=1), 1)
        x0, x1 = share[rows, after - 1], share[rows, after]
        y0, y1 = gap_share[rows, after - 1], gap_share[rows, after]
        numbers[name] = np.where(np.isnan(y1), np.nan, x0 + divide(part - y0, y1 - y0) * (x1 - x0))
    return numbers


PAIR = ("apgr", *CPT)
"""RouteLLM's metrics, for two targets."""
Line = Float64[NDArray[np.float64], " point"]
Shares = Float64[NDArray[np.float64], " share"]


@final
@dataclass(frozen=True, eq=False)
class RatioCurve:
    """One router's accuracy over the share that is sent to the strong target.

    Attributes:
        name: The router's name.
        ratio: n / N, for n from 0 to N.
        accuracy: Accuracy at each share; NaN where nothing was measured.
        band_ratio: Shares at which the band is given.
        lower: Lower bound of the band; 95 % of the resampled curves stay within the band from end
            to end (`evaluation.bootstrap.Band`). NaN without resamples.
        upper: Upper bound of the band.
        at: The accuracy at each of `RATIOS`, with intervals.
        summary: `mean_accuracy` over all shares, and `lift`, its difference to sending the same
            shares at random. For two targets also RouteLLM's `apgr` and `cpt_20`, `cpt_50`,
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
        """The share with the highest accuracy (the lowest of several), and that accuracy."""
        place = int(np.nanargmax(self.accuracy))
        return float(self.ratio[place]), float(self.accuracy[place])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        shares = [f"{ratio:g}" for ratio in RATIOS]
        share, accuracy = self.best
        return {
            "at": estimates_to_dict(dict(zip(shares, self.at, strict=True))),
            "best": {"ratio": share, "accuracy": accuracy},
            "summary": estimates_to_dict(self.summary),
            "minus_first": estimates_to_dict(dict(zip(shares, self.difference, strict=False))),
            "summary_minus_first": estimates_to_dict(self.summary_difference or {}),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per share: the exact points, then those of the band."""
        exact = zip(self.ratio.tolist(), self.accuracy.tolist(), strict=True)
        band = zip(self.band_ratio.tolist(), self.lower.tolist(), self.upper.tolist(), strict=True)

        def row(ratio: float, accuracy: float, lower: float, upper: float) -> dict[str, Any]:
            numbers = {"ratio": ratio, "accuracy": accuracy, "lower": lower, "upper": upper}
            return {"router": self.name, **numbers}

        band_rows = [row(r, np.nan, low, high) for r, low, high in band if np.isfinite(low)]
        return [row(r, a, np.nan, np.nan) for r, a in exact] + band_rows


@final
@dataclass(frozen=True, eq=False)
class RatioStudy:
    """The curves of several routers on the same queries.

    Attributes:
        strong: The target that queries are sent to.
        strong_accuracy: Its accuracy on these queries, where all curves end.
        curves: One per router; differences are from the first.
        queries: How many there are.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the resamples.
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
            "routers": {curve.name: curve.to_dict() for curve in self.curves},
        }

    def rows(self) -> list[dict[str, Any]]:
        """The points of all curves."""
        return [row for curve in self.curves for row in curve.rows()]

    def report(
        self,
        *,
        title: str,
        facts: Mapping[str, str],
        failures: Sequence[RecipeFailure] = (),
    ) -> Report:
        """The page, tables and figure of the study."""
        meanings = {**_MEANINGS, **(_PAIR_MEANING if PAIR[0] in self.curves[0].summary else {})}
        intro = (
            f"The share of queries sent to {self.strong}; prices play no part. At 100 % all "
            "routers are the same."
        )
        return Report(
            name="ratio",
            title=title,
            summary=summary(self),
            facts={**facts, "strong target": self.strong},
            parts=[
                ReportFigure("ratio", draw(self), self.rows(), _write_caption(self)),
                Section("Accuracy by share", [Note(intro), _tabulate_shares(self)]),
                Section(f"Differences from {self.curves[0].name}", [_tabulate_differences(self)]),
                Section("Over all shares", [_tabulate_summaries(self)]),
                Section("How to read it", [meanings]),
            ],
            numbers=self.to_dict(),
            tables={"ratio": _list_rows(self)},
            short=Table(
                ["router", *_HEADS],
                [
                    [curve.name, *(f"{100 * at.value:.1f}" for at in curve.at)]
                    for curve in self.curves
                ],
            ),
            warnings=warnings(failures),
        )


def find_strongest(dataset: RoutingDataset) -> str:
    """The target with the highest share of right answers where measured; the first of equals.

    Raises:
        DataError: Nothing was measured.
    """
    is_known = ~np.isnan(dataset.correct)
    if not is_known.any():
        raise DataError("no answer has a label, so no target can be called the strong one")
    right = np.where(is_known, dataset.correct, 0).sum(axis=0)
    mean = np.where(is_known.any(axis=0), right / np.maximum(is_known.sum(axis=0), 1), -1)
    return dataset.pool.names[int(mean.argmax())]


def routing_ratio(
    systems: Mapping[str, Predictions],
    dataset: RoutingDataset,
    options: RatioOptions | None = None,
    *,
    strong: str,
    progress: Progress | None = None,
) -> RatioStudy:
    """Send every share of the queries to the strong target, in each router's own order.

    Args:
        systems: Predictions by name, of the same queries and targets.
        dataset: Labels and observed costs.
        options: The resampling, the same for all.
        strong: The strong target; `strongest` of the train part, or as in the paper the test part.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: There is no system, only one target, or no target called `strong`.
        DataError: The systems' queries differ, the dataset lacks some, or nothing was measured.
    """
    if not systems:
        raise ConfigError("there is no router; name at least one")
    options = options or RatioOptions()
    resamples, seed = options.resamples, options.seed
    first = next(iter(systems.values()))
    if strong not in first.targets or len(first.targets) < 2:
        raise ConfigError(
            f"the strong target is {strong!r}; name one of the router's targets: "
            f"{list(first.targets)}. There must be at least two"
        )
    data = dataset.select(first.query_ids, targets=first.targets)
    if np.isnan(data.correct).all():
        raise DataError("none of these queries has a label; give scored answers")
    orders = [
        RatioOrder.of(system.select(first.query_ids, targets=first.targets), data.correct, strong)
        for system in systems.values()
    ]
    tables: list[list[RatioReading]] = [[] for _ in orders]
    with (progress or SilentProgress()).task("resamples", total=float(resamples)) as advance:
        for weights in chunks(len(data), count=resamples, seed=seed, width=4 * len(data)):
            for readings, order in zip(tables, orders, strict=True):
                readings.append(order.read(weights))
            advance(len(weights))
    curves: list[RatioCurve] = []
    point = [order.read(ones(len(data))) for order in orders]
    resampled = (
        [RatioReading.together(parts) for parts in tables] if resamples else [None] * len(orders)
    )
    for i, name in enumerate(systems):
        against = None if not i else (point[0], resampled[0])
        curves.append(_make_curve(name, orders[i], point[i], resampled[i], against))
    end = float(curves[0].accuracy[-1])
    return RatioStudy(strong, end, tuple(curves), len(data), resamples, seed)


def _make_curve(
    name: str,
    order: RatioOrder,
    point: RatioReading,
    resampled: RatioReading | None,
    against: tuple[RatioReading, RatioReading | None] | None,
) -> RatioCurve:
    share, right, labelled = order.points(ones(len(order.order)))
    none = np.full((0, BAND + 1), np.nan)
    band = Band.of(np.linspace(0, 1, BAND + 1), none if resampled is None else resampled.band)
    difference: tuple[Estimate, ...] = ()
    summary_difference = None
    if against is not None:
        first, first_resampled = against
        pair = (
            None if resampled is None or first_resampled is None else (resampled, first_resampled)
        )
        moved = None if pair is None else pair[0].at - pair[1].at
        difference = _make_estimates(point.at - first.at, moved)
        summary_difference = {
            n: _make_estimate(
                float(value[0] - first.summary[n][0]),
                None if pair is None else pair[0].summary[n] - pair[1].summary[n],
            )
            for n, value in point.summary.items()
        }
    return RatioCurve(
        name,
        share[0],
        (right / mask_zeros(labelled))[0],
        band.x,
        band.lower,
        band.upper,
        _make_estimates(point.at, None if resampled is None else resampled.at),
        {
            n: _make_estimate(float(value[0]), None if resampled is None else resampled.summary[n])
            for n, value in point.summary.items()
        },
        difference,
        summary_difference,
    )


def _make_estimates(
    value: NDArray[np.float64], resampled: NDArray[np.float64] | None
) -> tuple[Estimate, ...]:
    columns = range(value.shape[1])
    return tuple(
        _make_estimate(float(value[0, i]), None if resampled is None else resampled[:, i])
        for i in columns
    )


def _make_estimate(value: float, resampled: NDArray[np.float64] | None) -> Estimate:
    return Estimate.of(value, np.zeros(0) if resampled is None else resampled)


_HEADS = tuple(f"{100 * ratio:g} %" for ratio in RATIOS)
_MEANINGS = {
    "mean accuracy": "Mean over all shares from 0 to 1.",
    "above chance": "The difference to sending the same shares of queries at random; 0 means that "
    "the order doesn't show which queries need the strong target.",
    "in between": "A share between two whole numbers of queries is interpolated linearly.",
    "missing labels": "Left out, whichever target a query goes to; never counted as wrong.",
    "equal probabilities": "The query that comes first in the test part goes first.",
}
_PAIR_LABELS = {
    "apgr": "APGR",
    "cpt_20": "CPT(20 %)",
    "cpt_50": "CPT(50 %)",
    "cpt_80": "CPT(80 %)",
}
_PAIR_MEANING = {
    "APGR": "RouteLLM's average performance gap recovered: the part of the accuracy gap between "
    "the two targets that is closed, averaged over all shares; 0.5 is chance.",
    "CPT(x)": "RouteLLM's call-performance threshold: the share of strong calls that closes x of "
    "the gap; lower is better. On this page the order is by the probability for the strong target; "
    "`compare` and `evaluate` follow the router's own policy.",
}


def summary(study: RatioStudy) -> list[str]:
    """The result in a few sentences."""
    best = max(study.curves, key=lambda curve: curve.summary["mean_accuracy"].value)
    top = max(study.curves, key=lambda curve: curve.best[1])
    share, accuracy = top.best
    lines = [
        f"{study.strong} alone answers {worded(study.strong_accuracy, 'share')} "
        f"correctly, of those among {study.queries:,} queries on which it was measured. Each "
        "router sends it the queries that it most probably answers correctly, and the others to "
        "the other target with the highest probability. "
        f"The highest accuracy is {worded(accuracy, 'share')}, by {top.name} with "
        f"{worded(share, 'share')} sent to {study.strong}; it was chosen among all shares on the "
        "same queries, so it is optimistic.",
        f"Over all shares {best.name} is the most accurate "
        f"({worded(best.summary['mean_accuracy'].value, 'share')}).",
    ]
    idle = [curve.name for curve in study.curves if not curve.summary["lift"].lower > 0]
    if idle and study.resamples:
        lines.append(
            f"Not significantly better than sending random queries: {', '.join(idle)}. Their order "
            f"doesn't show which queries need {study.strong}."
        )
    return lines


def _tabulate_shares(study: RatioStudy) -> Table:
    """A table of each router's accuracy at some shares."""
    rows: list[Row] = [
        [curve.name, *(estimate_cell(value, "share") for value in curve.at)]
        for curve in study.curves
    ]
    return Table(["Router", *_HEADS], rows)


def _tabulate_differences(study: RatioStudy) -> Table:
    """A table of each router minus the first, at the same shares and on the same resamples."""
    rows: list[Row] = [
        [
            curve.name,
            *(
                estimate_cell(d, "points", compared=significance(d, "higher"))
                for d in curve.difference
            ),
        ]
        for curve in study.curves[1:]
    ]
    return Table(["Router", *_HEADS], rows, note=BOLD, otherwise="There is no other router.")


def _tabulate_summaries(study: RatioStudy) -> Table:
    """A table of means over all shares."""
    pair = [name for name in PAIR if name in study.curves[0].summary]
    head = ["Router", "mean accuracy", "above chance", *(_PAIR_LABELS[name] for name in pair)]
    rows: list[Row] = []
    for curve in study.curves:
        numbers, lift = curve.summary, curve.summary["lift"]
        cells = [estimate_cell(numbers[n], "number" if n == "apgr" else "share") for n in pair]
        mean = estimate_cell(numbers["mean_accuracy"], "share")
        above = estimate_cell(lift, "points", compared=significance(lift, "higher"))
        rows.append([curve.name, mean, above, *cells])
    return Table(head, rows)


def draw(study: RatioStudy) -> Figure:
    """Draw all curves, the first with its band."""
    figure = new_figure(9.4, 5.6)
    axes = figure.add_subplot()
    for place, curve in enumerate(study.curves):
        colour, line, _ = stroke(place)
        x, y = 100 * curve.ratio, 100 * curve.accuracy
        axes.plot(x, y, color=colour, ls=line, lw=1.7, label=curve.name, zorder=3)
        if place == 0 and np.isfinite(curve.lower).any():
            band = (100 * curve.band_ratio, 100 * curve.lower, 100 * curve.upper)
            label = f"{curve.name}: 95 % of the resampled curves"
            axes.fill_between(*band, color=colour, alpha=0.13, lw=0, label=label)
    end = 100 * study.strong_accuracy
    axes.axhline(end, color=QUIET, lw=0.9, ls=":", label=f"{study.strong} alone")
    style(
        axes,
        title=f"Accuracy by the share of queries sent to {study.strong}",
        x=f"queries sent to {study.strong} (%)",
        y="accuracy (%)",
    )
    axes.set_xlim(0, 100)
    axes.title.set_color(INK)
    legend_below(figure)
    return figure


def _write_caption(study: RatioStudy) -> str:
    first = study.curves[0]
    spread = interval(first.summary["mean_accuracy"], "share")
    band = (
        f" The band holds 95 % of the resampled curves of {first.name} from end to end; its mean "
        f"accuracy is within {spread}."
        if spread
        else ""
    )
    return (
        "Left: the strong target answers nothing; right: everything. A curve that rises above both "
        f"of its ends shows that the router knows which queries to send there.{band} Overlapping "
        "bands don't mean that two routers are equal: the paired differences below are more "
        "powerful."
    )


def _list_rows(study: RatioStudy) -> Rows:
    rows = []
    for curve in study.curves:
        accuracies = {f"at_{ratio:g}": value for ratio, value in zip(RATIOS, curve.at, strict=True)}
        best = {"best_ratio": curve.best[0], "best_accuracy": curve.best[1]}
        rows.append({"router": curve.name, **flat({**accuracies, **curve.summary}), **best})
    return rows
