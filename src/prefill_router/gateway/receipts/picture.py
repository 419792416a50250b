"""The accuracy-cost curve of the recorded traffic as a picture, with its data beside."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from prefill_router.evaluation.drawn import write_figure
from prefill_router.evaluation.figures import INK
from prefill_router.gateway.receipts.replay import Replay
from prefill_router.studies.drawing import QUIET, legend_below, new_figure, stroke, style

_REQUESTS = 1000


def write_picture(found: Replay, path: Path) -> list[Path]:
    """Draw what replayed settings give, expected.

    Args:
        found: The settings and the requests.
        path: Where to, without a suffix.

    Returns:
        The files: `.png`, `.svg` and `.csv`.
    """
    rows = _rows(found)
    figure = new_figure(6.4, 4.6)
    axes = figure.subplots()
    _draw(axes, rows)
    title = f"{len(found.recorded):,} recorded requests, decided again"
    style(axes, title=title, x="expected US dollars for 1,000 requests", y="expected accuracy")
    legend_below(figure)
    return write_figure(figure, path, rows)


def _rows(found: Replay) -> list[dict[str, Any]]:
    curve = found.recorded.curve()
    rows = [
        _row("curve", "", p, c, lam=lam)
        for lam, p, c in zip(
            curve.lam.tolist(), curve.accuracy.tolist(), curve.cost.tolist(), strict=True
        )
    ]
    singles = found.recorded.singles().items()
    rows += [_row("target", name, one.accuracy, one.cost) for name, one in singles]
    rows += [
        _row("setting", one.name, one.accuracy, one.estimated_cost / one.requests)
        for one in found.settings
    ]
    return rows


def _row(
    kind: str, name: str, accuracy: float, cost: float, *, lam: float | None = None
) -> dict[str, Any]:
    told = {"accuracy": accuracy, "usd_per_1000": _REQUESTS * cost}
    return {"kind": kind, "name": name, "lam": lam, **told}


def _draw(axes: Axes, rows: list[dict[str, Any]]) -> None:
    def points(kind: str) -> tuple[list[float], list[float], list[str]]:
        some = [row for row in rows if row["kind"] == kind]
        return (
            [row["usd_per_1000"] for row in some],
            [row["accuracy"] for row in some],
            [row["name"] for row in some],
        )

    x, y, _ = points("curve")
    axes.plot(x, y, "-", color=stroke(0)[0], lw=1.6, drawstyle="steps-post", label="any lam")
    x, y, names = points("target")
    axes.plot(x, y, "o", color=QUIET, ms=5, label="one target alone")
    _name(axes, x, y, names, below=False)
    x, y, names = points("setting")
    colour, _, marker = stroke(1)
    axes.plot(x[:1], y[:1], marker, color=colour, ms=7, ls="none", label=names[0])
    colour, _, marker = stroke(2)
    axes.plot(x[1:], y[1:], marker, color=colour, ms=6, ls="none", label="settings tried")
    _name(axes, x[1:], y[1:], names[1:], below=True)


def _name(axes: Axes, x: list[float], y: list[float], names: list[str], *, below: bool) -> None:
    place = (5, -10) if below else (5, 5)
    for a, b, name in zip(x, y, names, strict=True):
        axes.annotate(
            name,
            (a, b),
            place,
            textcoords="offset points",
            fontsize=7,
            color=INK,
            parse_math=False,
        )
