"""One figure of a decision, a router, a dataset or an evaluation, for notebooks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.data import LabelMeaning, RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation import Evaluation
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting.evaluation_charts import is_wide
from prefill_router.reporting.evaluation_report import evaluation_figures
from prefill_router.reporting.figures import (
    BLUE,
    INK,
    PALE,
    name_rows,
    new_figure,
    place_labels,
    png,
    scale_cost,
    style,
    write_figure,
)
from prefill_router.reporting.report import Rows
from prefill_router.router import Decision, Router
from prefill_router.short_repr import short_repr

_PER = 1000
PerTarget = Float64[NDArray[np.float64], " target"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Plot:
    """A figure, which a notebook shows, with its data.

    Attributes:
        figure: The figure.
        rows: The data that it is drawn from, one mapping per point.
    """

    figure: Figure
    rows: Rows

    def _repr_png_(self) -> bytes:
        return png(self.figure)

    def save(self, path: Path | str) -> list[Path]:
        """Write the figure as PNG and SVG and the data as CSV; returns the files.

        Args:
            path: Path of the files, without a suffix.
        """
        return write_figure(self.figure, Path(path), self.rows)


@singledispatch
def plot(what: object) -> Plot:
    """Draw a decision, a router, a dataset, or an evaluation.

    A decision has every target's probability of a correct answer, and its score over lam. A router
    and a dataset have every target's accuracy against what its answers cost. An evaluation has the
    accuracy at each cost, with its interval.

    Args:
        what: The object.

    Raises:
        ConfigError: It is something else, or nothing is known of it that could be drawn.
        MissingExtraError: Matplotlib isn't installed.
    """
    raise ConfigError(
        f"a {type(what).__name__} can't be drawn; give a Decision, a Router, a RoutingDataset or "
        "an Evaluation"
    )


@plot.register
def _of_decision(what: Decision) -> Plot:
    figure = new_figure(9.4, 0.34 * len(what.order) + 1.6)
    left, right = figure.subplots(1, 2, sharey=True)
    names = what.order[::-1]
    colours = [BLUE if name == what.target else PALE for name in names]
    left.barh(range(len(names)), [100 * what.correctness[n] for n in names], color=colours)
    name_rows(left, names)
    style(
        left, title=f"{what.target}, at lam = {what.lam:g}", x=f"{what.chance_title}, %", bars=True
    )
    for one in what.path:
        row = names.index(one.target)
        right.barh(row, one.lam_to - one.lam_from, left=one.lam_from, color=colours[row])
    right.axvline(what.lam, color=INK, lw=1, ls=":")
    right.set_xlim(0, 1)
    style(right, title="Who wins at which lam", x="lam", bars=True)
    rows: list[dict[str, object]] = [
        {"target": name, "lam_from": None, "lam_to": None, "correctness": share}
        for name, share in what.correctness.items()
    ]
    rows += [{**vars(one), "correctness": what.correctness[one.target]} for one in what.path]
    return Plot(figure, rows)


@plot.register
def _of_dataset(what: RoutingDataset) -> Plot:
    known = ~np.isnan(what.correct)
    accuracy = [_mean(what.correct[known[:, k], k]) for k in range(len(what.pool))]
    cost = [_mean(what.observed_cost[:, k]) for k in range(len(what.pool))]
    title = f"{len(what):,} queries"
    return _targets(what.pool.names, accuracy, cost, title, what.meaning.title)


@plot.register
def _of_router(what: Router) -> Plot:
    if what.reference is None:
        raise ConfigError("the router has no statistics of its train rows; fit it again")
    forecast = what.costs.estimate(np.array([_PER]))
    cost = (forecast[0] if not what.costs.is_free else np.full(len(what.pool), np.nan)).tolist()
    title = f"Train rows; cost of a question of {_PER:,} tokens"
    share = LabelMeaning(kind=what.record.labels).title
    return _targets(what.pool.names, what.reference.accuracy.tolist(), cost, title, share)


@plot.register
def _of_evaluation(what: Evaluation) -> Plot:
    first = evaluation_figures(what)[0]
    return Plot(first.figure, first.rows)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]
    return float(np.mean(known)) if known else float("nan")


def _targets(
    names: Sequence[str],
    accuracy: Sequence[float],
    cost: Sequence[float],
    title: str,
    measure: str,
) -> Plot:
    """Every target's mean label against its cost, or in rows where no cost is known."""
    figure = new_figure(7.4, 5.0)
    axes = figure.add_subplot()
    dollars, share = _PER * np.array(cost), 100 * np.array(accuracy)
    if np.isfinite(dollars * share).all():
        _draw_points(axes, names, dollars, share, title, measure)
    else:
        axes.barh(range(len(names)), np.nan_to_num(share), color=BLUE)
        name_rows(axes, names)
        style(axes, title=title, x=f"{measure.capitalize()} (%)", bars=True)
    rows = [
        {"target": name, "accuracy": one, "cost": paid}
        for name, one, paid in zip(names, accuracy, cost, strict=True)
    ]
    return Plot(figure, rows)


def _draw_points(
    axes: Axes,
    names: Sequence[str],
    dollars: PerTarget,
    share: PerTarget,
    title: str,
    measure: str,
) -> None:
    axes.plot(dollars, share, "o", color=BLUE)
    if is_wide(dollars):
        scale_cost(axes)
    axes.margins(0.15)
    style(axes, title=title, x=f"US dollars per {_PER:,} answers", y=f"{measure.capitalize()} (%)")
    at = list(zip(dollars.tolist(), share.tolist(), strict=True))
    place_labels(axes, at, names, colour=INK)
