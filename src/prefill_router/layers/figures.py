"""Figures of geometry by depth and of the encoder sweep: PNG, SVG, and the data as CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefill_router import files
from prefill_router.activations import POOLINGS, Pooling
from prefill_router.layers.criteria import Survey, mean_over_targets
from prefill_router.layers.layer_sweep import EncoderSweep
from prefill_router.plotting import Axes, Figure, FigureCanvasAgg, rc_context

_COLOURS: dict[Pooling, str] = {"last": "#0072b2", "mean": "#d55e00", "rest": "#009e73"}
_MARKERS: dict[Pooling, str] = {"last": "o", "mean": "s", "rest": "^"}
_NAMES: dict[Pooling, str] = {
    "last": "last token",
    "mean": "mean of tokens",
    "rest": "mean without the first token",
}
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "prefill-router",
    "svg.fonttype": "none",
}


def draw_geometry(survey: Survey, folder: Path, *, encoder: str) -> list[Path]:
    """Draw J, effective dimensionality and anisotropy by depth, a line per pooling.

    Args:
        survey: The data; J is shown as its mean over targets, with their middle half as a band.
        folder: The folder for `geometry.png`, `geometry.svg` and `geometry.csv`.
        encoder: The encoder's name, for the title.

    Returns:
        The paths of the files.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        panels = list(figure.subplots(1, 3))
        for pooling in POOLINGS:
            _draw_pooling(panels, survey, pooling)
        titles = (
            ("Fisher separability", f"J on PCA-{survey.dim}"),
            ("Effective dimensionality", "dimensions"),
            ("Anisotropy", "mean cosine"),
        )
        for panel, (title, unit) in zip(panels, titles, strict=True):
            panel.set(title=title, ylabel=unit, xlabel="layer")
            panel.set_xticks(_ticks([site.layer for site in survey.sites]))
            panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panels[0].set_ylim(bottom=0)
        panels[1].set_ylim(bottom=0)
        handles, labels = panels[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle(
            f"Geometry of {encoder} by depth, over {len(survey.targets)} targets "
            "(band: middle half of the targets)",
            fontsize=10,
        )
        return _save(figure, folder / "geometry", pl.DataFrame(survey.rows()))


def draw_sweep(sweep: EncoderSweep, folder: Path) -> list[Path]:
    """Draw the test AUC of every target under every encoder as a heat map.

    Returns:
        `sweep.png`, `sweep.svg` and `sweep.csv`, which also has the sites and cross-validated AUC.
    """
    shown = np.column_stack([sweep.auc, sweep.mean()])
    columns = [*sweep.targets, "mean"]
    with rc_context(_STYLE):
        size = (2.4 + 0.62 * len(columns), 2.3 + 0.42 * len(sweep.encoders))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shown, cmap="cividis", aspect="auto")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks(
            range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor"
        )
        axes.set_yticks(range(len(sweep.encoders)), sweep.encoders)
        axes.axvline(len(sweep.targets) - 0.5, color="white", linewidth=3)
        _write_cells(axes, shown)
        figure.colorbar(image, ax=axes, label="test AUC", shrink=0.9, pad=0.01)
        axes.set(xlabel="target", ylabel="encoder")
        axes.set_title("AUC of every target under every encoder (*: best)", fontsize=10)
        return _save(figure, folder / "sweep", pl.DataFrame(sweep.rows()))


def _draw_pooling(panels: Sequence[Axes], survey: Survey, pooling: Pooling) -> None:
    rows = [i for i, site in enumerate(survey.sites) if site.pooling == pooling]
    if not rows:
        return
    layers = [survey.sites[i].layer for i in rows]
    colour, marker = _COLOURS[pooling], _MARKERS[pooling]
    fisher = survey.fisher[rows]
    lines = (
        mean_over_targets(fisher),
        survey.effective_dimensionality[rows],
        survey.anisotropy[rows],
    )
    for panel, values in zip(panels, lines, strict=True):
        panel.plot(layers, values, color=colour, marker=marker, label=_NAMES[pooling], markersize=5)
    judged = fisher[:, ~np.isnan(fisher).any(axis=0)]
    if judged.shape[1] > 1:
        low, high = np.quantile(judged, [0.25, 0.75], axis=1)
        panels[0].fill_between(layers, low, high, color=colour, alpha=0.15, linewidth=0)


def _write_cells(axes: Axes, values: NDArray[np.float64]) -> None:
    known = values[~np.isnan(values)]
    middle = (known.min() + known.max()) / 2 if len(known) else 0.0
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axes.text(column, row, "-", ha="center", va="center")
            continue
        best = len(values) > 1 and value == np.nanmax(values[:, column])
        axes.text(
            column,
            row,
            f"{value:.3f}{'*' if best else ''}",
            ha="center",
            va="center",
            color="black" if value > middle else "white",
        )


def _ticks(layers: Sequence[int]) -> list[int]:
    """At most a dozen layers, the first and last among them."""
    low, high = min(layers), max(layers)
    step = max(1, -(-(high - low) // 11))
    return list(range(high, low - 1, -step))[::-1]


def _save(figure: Figure, stem: Path, data: pl.DataFrame) -> list[Path]:
    FigureCanvasAgg(figure)
    paths = [stem.with_suffix(ending) for ending in (".png", ".svg", ".csv")]
    with files.replacing_file(paths[0]) as temporary:
        figure.savefig(temporary, format="png", dpi=160)
    with files.replacing_file(paths[1]) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})
    with files.replacing_file(paths[2]) as temporary:
        temporary.write_text(data.write_csv(), encoding="utf-8")
    return paths
