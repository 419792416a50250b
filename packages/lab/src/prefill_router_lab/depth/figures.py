"""Figures of layers by depth and of the encoder sweep: PNG, SVG, and the data as CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefill_router import files
from prefill_router.activations import POOLINGS, Pooling
from prefill_router.layers import Survey, mean_over_targets
from prefill_router.plotting import Axes, Figure, FigureCanvasAgg, rc_context
from prefill_router_lab.depth.depth import DepthProfile, EncoderSweep

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
    "text.parse_math": False,
}
# Okabe and Ito's colours, and three more that are darker or paler than all of them.
_PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#000000", "#999999", "#6b4226"),
)
_LINES: dict[Pooling, str] = {"last": "--", "mean": "-", "rest": ":"}
_LONGEST = 34
"""The most letters of a subject's name that are drawn."""
_LEGIBLE = 20
"""The most layers of which every number is written into the heat map."""


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
            panel.set_xticks(_choose_ticks([site.layer for site in survey.sites]))
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
        return _save_files(figure, folder / "geometry", pl.DataFrame(survey.rows()))


def draw_depth(profiles: Sequence[DepthProfile], folder: Path) -> list[Path]:
    """Draw what layers know by relative depth, a line per encoder and pooling, and by subject.

    Args:
        profiles: One per encoder, of the same train rows.
        folder: The folder for `depth.png`, `depth.svg` and `depth.csv`. The subjects are drawn for
            the line with the greatest AUC of a probe; the CSV has those of every line.

    Returns:
        The paths of the files.
    """
    rows = pl.DataFrame([r for p in profiles for r in p.rows()], infer_schema_length=None)
    whole = rows.filter(pl.col("subject").is_null())
    best = whole.sort("probe_auc", descending=True, nulls_last=True).row(0, named=True)
    subject_rows = rows.filter(
        pl.col("subject").is_not_null(),
        pl.col("encoder") == best["encoder"],
        pl.col("pooling") == best["pooling"],
    )
    count = subject_rows["subject"].n_unique()
    with rc_context(_STYLE):
        figure = Figure(figsize=(10.5, 3.9 + (0.9 + 0.24 * count) * (count > 0)))
        figure.set_layout_engine("constrained", h_pad=0.06, hspace=0.03)
        parts: Any = (
            figure.subfigures(2, 1, height_ratios=(3.5, 0.9 + 0.24 * count)) if count else None
        )
        lines = figure if parts is None else parts[0]
        _draw_readings(lines, whole, profiles[0].grid.dims[0])
        if parts is not None:
            _draw_subjects(parts[1], subject_rows)
        figure.suptitle(
            f"What layers know of the correctness of {len(profiles[0].survey.targets)} targets "
            f"on {profiles[0].queries:,} train queries (means over targets)",
            fontsize=10,
        )
        return _save_files(figure, folder / "depth", rows)


def draw_sweep(sweep: EncoderSweep, folder: Path) -> list[Path]:
    """Draw the test AUC of every target under every encoder as a heat map.

    Returns:
        `sweep.png`, `sweep.svg` and `sweep.csv`, which also has the sites and cross-validated AUC.
    """
    cells = np.column_stack([sweep.auc, sweep.mean()])
    columns = [*sweep.targets, "mean"]
    with rc_context(_STYLE):
        size = (2.4 + 0.62 * len(columns), 2.3 + 0.42 * len(sweep.encoders))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(cells, cmap="cividis", aspect="auto")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks(
            range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor"
        )
        axes.set_yticks(range(len(sweep.encoders)), sweep.encoders)
        axes.axvline(len(sweep.targets) - 0.5, color="white", linewidth=3)
        _write_cells(axes, cells)
        figure.colorbar(image, ax=axes, label="test AUC", shrink=0.9, pad=0.01)
        axes.set(xlabel="target", ylabel="encoder")
        axes.set_title("AUC of every target under every encoder (*: best)", fontsize=10)
        return _save_files(figure, folder / "sweep", pl.DataFrame(sweep.rows()))


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


def _draw_readings(figure: Any, rows: pl.DataFrame, dim: int) -> None:
    """Three panels of the readings at every site, which share a legend."""
    panels = list(figure.subplots(1, 3))
    titles = {
        "fisher": (f"Fisher J on PCA-{dim}", "J"),
        "probe_auc": (f"Linear probe on PCA-{dim}, five-fold", "AUC"),
        "votes_auc": ("Votes of neighbours, leave-one-out", "AUC"),
    }
    panels[2].sharey(panels[1])
    encoders = rows["encoder"].unique(maintain_order=True).to_list()
    for (encoder, pooling), line in rows.group_by("encoder", "pooling", maintain_order=True):
        place = encoders.index(encoder)
        alone = len(encoders) == 1
        how: dict[str, Any] = {
            "color": _COLOURS[pooling] if alone else _PALETTE[place % len(_PALETTE)],
            "ls": _LINES[pooling],
            "marker": _MARKERS[pooling],
            "label": _NAMES[pooling] if alone else f"{encoder}, {_NAMES[pooling]}",
            "mfc": "white" if pooling == "rest" else None,  # it often covers the mean
            "ms": 4,
        }
        for panel, name in zip(panels, titles, strict=True):
            panel.plot(line["depth"].to_numpy(), line[name].cast(pl.Float64).to_numpy(), **how)
    for panel, (title, unit) in zip(panels, titles.values(), strict=True):
        panel.set_title(title, fontsize=9.5)
        panel.set(ylabel=unit, xlabel="depth (layer / number of layers)")
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def _draw_subjects(figure: Any, rows: pl.DataFrame) -> None:
    """A heat map of the probe's AUC by subject and layer, the most legible subject first."""
    order = rows.group_by("subject", maintain_order=True).agg(pl.col("probe_auc").max())
    names = order.sort("probe_auc", descending=True, maintain_order=True)["subject"].to_list()
    layers = rows["layer"].unique().sort().to_list()
    wide = rows.pivot("layer", index="subject", values="probe_auc")
    cells = wide.select(map(str, layers)).to_numpy().astype(np.float64)
    cells = cells[[wide["subject"].to_list().index(name) for name in names]]
    axes = figure.subplots()
    image = axes.imshow(cells, cmap="cividis", aspect="auto")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_yticks(range(len(names)), [_shorten_name(name) for name in names], fontsize=8)
    numbers = range(len(layers))
    places = list(numbers) if len(layers) <= _LEGIBLE else _choose_ticks(numbers)
    axes.set_xticks(places, [layers[i] for i in places], fontsize=8)
    _write_cells(axes, cells, along=1, numbers=len(layers) <= _LEGIBLE, size=7)
    axes.set(xlabel="layer")
    first = rows.row(0, named=True)
    axes.set_title(
        f"AUC of the probe within each subject: {first['encoder']}, {_NAMES[first['pooling']]} "
        "(*: the subject's best layer)",
        fontsize=9,
    )
    figure.colorbar(image, ax=axes, label="AUC", pad=0.01)


def _shorten_name(name: str) -> str:
    """A name without its middle, since long ones often begin alike."""
    half = _LONGEST // 2
    return name if len(name) <= _LONGEST else f"{name[: half - 1]}\u2026{name[-half:]}"


def _write_cells(
    axes: Axes,
    values: NDArray[np.float64],
    *,
    along: int = 0,
    numbers: bool = True,
    size: float = 9,
) -> None:
    """Write the numbers into the cells of a heat map, and a star at the best along an axis."""
    count = values.shape[along]
    finite = values[~np.isnan(values)]
    middle = (finite.min() + finite.max()) / 2 if len(finite) else 0.0
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axes.text(column, row, "-", ha="center", va="center", fontsize=size)
            continue
        rivals = values[:, column] if along == 0 else values[row]
        star = "*" if count > 1 and value == np.nanmax(rivals) else ""
        axes.text(
            column,
            row,
            f"{value:.3f}{star}" if numbers else star,
            ha="center",
            va="center",
            color="black" if value > middle else "white",
            fontsize=size,
        )


def _choose_ticks(layers: Sequence[int]) -> list[int]:
    """At most a dozen layers, the first and last among them."""
    low, high = min(layers), max(layers)
    step = max(1, -(-(high - low) // 11))
    return list(range(high, low - 1, -step))[::-1]


def _save_files(figure: Figure, stem: Path, data: pl.DataFrame) -> list[Path]:
    FigureCanvasAgg(figure)
    paths = [stem.with_suffix(ending) for ending in (".png", ".svg", ".csv")]
    with files.replacing_file(paths[0]) as temporary:
        figure.savefig(temporary, format="png", dpi=160)
    figure.set_layout_engine("none")  # as it is in the bitmap; computing it takes half the time
    with files.replacing_file(paths[1]) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})
    with files.replacing_file(paths[2]) as temporary:
        temporary.write_text(data.write_csv(), encoding="utf-8")
    return paths
