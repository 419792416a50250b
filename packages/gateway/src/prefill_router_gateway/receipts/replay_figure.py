"""The accuracy-cost curve of the recorded traffic as a figure, with its data in a table."""

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from prefill_router.errors import DataError
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting import (
    INK,
    QUIET,
    legend_below,
    new_figure,
    place_labels,
    stroke,
    style,
    write_figure,
)
from prefill_router_gateway.receipts.receipt_replay import Replay

_REQUESTS = 1000
_SEEN = 100
"""The number of points on the curve that labels should avoid."""


def write_picture(replay: Replay, path: Path) -> list[Path]:
    """Draw the expected results of replayed settings.

    Args:
        replay: The settings and the requests.
        path: The path of the files, without a suffix.

    Returns:
        The files: `.png`, `.svg` and `.csv`.

    Raises:
        DataError: The costs of some requests are unknown.
    """
    if not replay.recorded.priced.all():
        raise DataError(
            "the costs of some of these requests are unknown, so there is no picture; replay with "
            "--pool, a pool with prices"
        )
    rows = rows_of(replay)
    how = "in their conversations" if replay.sessions else "each by itself"
    title = f"{len(replay.recorded):,} recorded requests, decided again {how}"
    return write_figure(picture(rows, title=title), path, rows)


def picture(rows: list[dict[str, Any]], *, title: str) -> Figure:
    """Draw the points of `rows_of`."""
    figure = new_figure(6.4, 4.6)
    axes = figure.subplots()
    _draw_points(axes, rows)
    axes.margins(x=0.08, y=0.08)
    style(axes, title=title, x="expected US dollars for 1,000 requests", y="expected accuracy")
    legend_below(figure)
    _label_points(axes, rows)
    return figure


def rows_of(replay: Replay) -> list[dict[str, Any]]:
    """The points of the picture: the curve, each target alone, as it was, and settings tried."""
    curve = replay.recorded.curve()
    rows = [
        _make_row("curve", "", p, c, lam=lam)
        for lam, p, c in zip(
            curve.lam.tolist(), curve.accuracy.tolist(), curve.cost.tolist(), strict=True
        )
    ]
    singles = replay.recorded.singles().items()
    rows += [_make_row("target", name, single.accuracy, single.cost) for name, single in singles]
    rows += [
        _make_row(
            "setting", setting.name, setting.accuracy, setting.estimated_cost / setting.requests
        )
        for setting in replay.settings
    ]
    return rows


def _make_row(
    kind: str, name: str, accuracy: float, cost: float, *, lam: float | None = None
) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "usd_per_1000": _REQUESTS * cost}
    return {"kind": kind, "name": name, "lam": lam, **figures}


def _list_points(rows: list[dict[str, Any]], kind: str) -> list[tuple[float, float]]:
    return [(row["usd_per_1000"], row["accuracy"]) for row in rows if row["kind"] == kind]


def _draw_points(axes: Axes, rows: list[dict[str, Any]]) -> None:
    costs, accuracies = _split_axes(_list_points(rows, "curve"))
    colour, _, _ = stroke(0)
    axes.step(
        costs, accuracies, where="post", label="any lam, each by itself", color=colour, lw=1.6
    )
    axes.plot(
        *_split_axes(_list_points(rows, "target")), "o", label="one target alone", color=QUIET, ms=5
    )
    was, *tried = _list_points(rows, "setting")
    colour, _, marker = stroke(1)
    axes.plot(*_split_axes([was]), marker, label="as it was", color=colour, ms=7)
    colour, _, marker = stroke(2)
    axes.plot(*_split_axes(tried), marker, label="settings tried", color=colour, ms=6)


def _split_axes(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _label_points(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Label all points but "as it was", which is in the legend.

    Settings with equal results are one point with one label.
    """
    names: dict[tuple[float, float], list[str]] = {}
    for kind, first in (("target", 0), ("setting", 1)):
        some = [row["name"] for row in rows if row["kind"] == kind][first:]
        for point, name in zip(_list_points(rows, kind)[first:], some, strict=True):
            if np.isfinite(point).all():
                x, y = (float(f"{value:.6g}") for value in point)  # equal despite rounding errors
                names.setdefault((x, y), []).append(name)
    avoid = [*_spread_points(_list_points(rows, "curve")), *_list_points(rows, "setting")]
    labels = [", ".join(some) for some in names.values()]
    place_labels(axes, list(names), labels, avoid=avoid, size=7, colour=INK)


def _spread_points(curve: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points on a step curve, evenly spaced in the figure."""
    corners = [(x, y) for (_, y), (x, _) in pairwise(curve)]
    x, y = np.array([*chain.from_iterable(zip(curve, corners, strict=False)), curve[-1]]).T
    steps = np.hypot(np.diff(x) / (np.ptp(x) or 1.0), np.diff(y) / (np.ptp(y) or 1.0))
    length = np.concatenate([[0.0], np.cumsum(steps)])
    at = np.linspace(0.0, length[-1], _SEEN)
    return list(
        zip(np.interp(at, length, x).tolist(), np.interp(at, length, y).tolist(), strict=True)
    )
