"""Pooling and PCA dimension: how well linear probes predict the targets' correctness at each.

Five-fold probe AUC on the train rows, as in the paper's grid search, at the layer that Fisher J
chooses for each target and at the best layer; for every encoder, pooling and dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.activations import POOLINGS, Activations, Pooling
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation import plain
from prefill_router.layers import Ablation, ablation, candidate_sites, search, survey
from prefill_router.plotting import Figure
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import (
    CHANCE_AUC,
    UNDERLINED,
    Cell,
    Note,
    Report,
    ReportFigure,
    Row,
    Section,
    Table,
    legend_below,
    new_figure,
    stroke,
    style,
)
from prefill_router_lab.depth import encoder_labels
from prefill_router_lab.studies.layer_options import DimensionOptions

USUAL = 100
"""The number of components that a router keeps by default."""


@final
@dataclass(frozen=True)
class DimensionCell:
    """The result for one encoder, choice of poolings and dimension.

    Attributes:
        encoder: The encoder's label.
        poolings: Poolings of the candidate sites.
        dim: Number of PCA components kept.
        ways: The result of each method of selecting a layer (`layers.ablation`).
    """

    encoder: str
    poolings: tuple[Pooling, ...]
    dim: int
    ways: Ablation

    @property
    def fisher(self) -> float:
        """Mean AUC over the targets, each at its layer of greatest Fisher J."""
        return self.ways["Fisher J"].auc

    @property
    def best(self) -> float:
        """Mean AUC over the targets, each at its best layer; nothing can exceed it."""
        return self.ways["BestLR"].auc

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "encoder": self.encoder,
            "poolings": list(self.poolings),
            "dim": self.dim,
            "fisher": plain(self.fisher),
            "best": plain(self.best),
        }


@final
@dataclass(frozen=True)
class DimensionStudy:
    """All encoders, poolings and dimensions.

    Attributes:
        cells: The results by encoder, then poolings, then rising dimension.
        widths: The size of each encoder's states, which bounds the number of components.
        targets: The targets' names.
        queries: Number of train queries.
        seed: Random seed of the folds.
    """

    cells: tuple[DimensionCell, ...]
    widths: tuple[tuple[str, int], ...]
    targets: tuple[str, ...]
    queries: int
    seed: int

    @property
    def top(self) -> DimensionCell:
        """The cell with the greatest AUC at the Fisher-chosen layers; of equals, the smallest."""
        return max(self.cells, key=lambda cell: (cell.fisher, -cell.dim))

    def line(self, encoder: str, poolings: Sequence[Pooling]) -> list[DimensionCell]:
        """The cells of one encoder and choice of poolings, by rising dimension."""
        return [c for c in self.cells if c.encoder == encoder and c.poolings == tuple(poolings)]

    @property
    def lines(self) -> list[tuple[str, tuple[Pooling, ...]]]:
        """Every encoder and choice of poolings."""
        return list(dict.fromkeys((cell.encoder, cell.poolings) for cell in self.cells))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "targets": list(self.targets),
            "queries": self.queries,
            "seed": self.seed,
            "widths": dict(self.widths),
            "top": self.top.to_dict(),
            "cells": [cell.to_dict() for cell in self.cells],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell."""
        rows = []
        for cell in self.cells:
            row = {**cell.to_dict(), "poolings": "+".join(cell.poolings)}
            rows.append({**row, **{f"auc:{s.name}": s.auc for s in cell.ways.selectors}})
        return rows

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study."""
        ways = f"Methods of choosing the layer, at {_choose_dimension(self)} components"
        return Report(
            name="dimensions",
            title=title,
            summary=summary(self),
            facts=facts,
            parts=[
                ReportFigure("dimensions", draw(self), self.rows(), _CAPTION),
                Section(
                    "At the Fisher-chosen layers",
                    [Note(UNDERLINED), _tabulate_grid(self, "fisher")],
                ),
                Section("At the best layers", [Note(UNDERLINED), _tabulate_grid(self, "best")]),
                Section(ways, [_tabulate_selectors(self)]),
                Section("What the numbers mean", [_MEANINGS]),
            ],
            numbers=self.to_dict(),
            tables={"dimensions": self.rows()},
            short=_tabulate_grid(self, "fisher", first="states"),
        )


def dimension_study(
    stores: Sequence[Activations],
    train: RoutingDataset,
    options: DimensionOptions | None = None,
    *,
    progress: Progress | None = None,
) -> DimensionStudy:
    """Probe every encoder, pooling and dimension; only train rows are used.

    Args:
        stores: The states of all train queries, one store per encoder.
        train: The train part.
        options: The numbers of components, the candidate sites, and the folds.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: There is no store, or no target can be evaluated.
        DataError: There are fewer distinct prompts than folds.
        StoreError: States are missing.
    """
    if not stores:
        raise ConfigError("there is no store of states; give one for each encoder")
    options = options or DimensionOptions()
    rising, poolings, seed = sorted(set(options.dims)), options.poolings, options.seed
    bar, labels = progress or SilentProgress(), encoder_labels(stores)
    cells: list[DimensionCell] = []
    for label, store in zip(labels, stores, strict=True):
        sites = candidate_sites(store, poolings=poolings, all_layers=options.all_layers)
        grid = search(store, train, sites=sites, dims=rising, seed=seed, progress=bar)
        surveys = {d: survey(store, train, sites=sites, dim=d, progress=bar) for d in rising}
        cells += [
            DimensionCell(label, kind, dim, ablation(surveys[dim], grid, dim=dim, poolings=kind))
            for kind in _list_choices([site.pooling for site in sites])
            for dim in rising
        ]
    widths = tuple((n, s.provenance.hidden_size) for n, s in zip(labels, stores, strict=True))
    return DimensionStudy(tuple(cells), widths, train.pool.names, len(train), seed)


def _list_choices(poolings: Sequence[Pooling]) -> list[tuple[Pooling, ...]]:
    """Each pooling alone, and all of them where there are several."""
    kinds = [pooling for pooling in POOLINGS if pooling in poolings]
    return [(kind,) for kind in kinds] + ([tuple(kinds)] if len(kinds) > 1 else [])


_CAPTION = (
    "Mean five-fold probe AUC over the targets on the train rows, by the number of PCA components "
    "kept. Left: each target at the layer that Fisher J chooses; right: at the layer with the best "
    "probe, which nothing can exceed."
)
_MEANINGS = {
    "mean AUC": "A linear probe is fitted for every target on four fifths of the train rows and "
    "scored on the rest, five times; 0.5 is chance, 1 is perfect. Scaler and PCA are fitted in "
    "each fold. The test part isn't used.",
    "last, mean, rest": "Which state of a layer is read: that of the last token, the mean over all "
    "tokens, or the mean over the rest after the first. Where several are named, the layer is "
    "chosen among the states of all of them.",
    "Random, Last": "A random candidate layer, and the deepest one.",
    "d_eff, alpha": "The layer with the highest effective dimensionality, and the least "
    "anisotropic one.",
    "Fisher J": "Each target's layer of greatest separability, which needs no probes.",
    "BestLR": "Each target's layer with the best probe: the limit of any selection.",
}


def summary(study: DimensionStudy) -> list[str]:
    """The result in a few sentences."""
    top = study.top
    lines = [
        "At the layers that Fisher J chooses, probes are best on "
        f"{_name_poolings(top.poolings)} states of {top.encoder} with {top.dim} components: a "
        f"mean AUC of {top.fisher:.4f} over {len(study.targets)} targets."
    ]
    line = study.line(top.encoder, top.poolings)
    usual = next((cell for cell in line if cell.dim == USUAL), None)
    if usual is not None and usual.dim != top.dim:
        lines.append(
            f"With {USUAL} components, the default of a router, it is "
            f"{usual.fisher:.4f}, {top.fisher - usual.fisher:.4f} less."
        )
    lines.append(
        f"Choosing the layer by probing each, which nothing can exceed, would reach {top.best:.4f} "
        "there."
    )
    for name, width in study.widths:
        if any(cell.encoder == name and cell.dim > width for cell in study.cells):
            lines.append(f"The states of {name} have {width} dimensions; PCA can't keep more.")
    return lines


def _tabulate_grid(study: DimensionStudy, which: str, *, first: str = "States") -> Table:
    """A table of mean AUC by encoder and pooling, a column per dimension; row bests underlined."""
    rows: list[Row] = []
    for encoder, poolings in study.lines:
        values = [_read_value(cell, which) for cell in study.line(encoder, poolings)]
        top = max(values)
        cells = [Cell(f"{value:.4f}", best=value == top and top > CHANCE_AUC) for value in values]
        rows.append([f"{encoder}, {_name_poolings(poolings)}", *cells])
    return Table([first, *map(str, sorted({cell.dim for cell in study.cells}))], rows)


def _tabulate_selectors(study: DimensionStudy) -> Table:
    """The paper's ablation: mean AUC by selection method, for every encoder and pooling."""
    cells = [cell for cell in study.cells if cell.dim == _choose_dimension(study)]
    rows = [
        [
            f"{cell.encoder}, {_name_poolings(cell.poolings)}",
            *(f"{s.auc:.4f}" for s in cell.ways.selectors),
        ]
        for cell in cells
    ]
    note = f"Over {len(study.targets)} targets, on train rows."
    return Table(["States", *(s.name for s in cells[0].ways.selectors)], rows, note=note)


def draw(study: DimensionStudy) -> Figure:
    """Draw the mean AUC by dimension, at the Fisher-chosen and at the best layers."""
    figure = new_figure(10.0, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"fisher": "Layer chosen by Fisher J", "best": "Best layer"}
    for axes, (which, title) in zip(panels, titles.items(), strict=True):
        for place, (encoder, poolings) in enumerate(study.lines):
            colour, line, marker = stroke(place)
            cells = study.line(encoder, poolings)
            x, y = [cell.dim for cell in cells], [_read_value(cell, which) for cell in cells]
            how = {"color": colour, "ls": line, "marker": marker, "ms": 5}
            axes.plot(x, y, label=f"{encoder}, {_name_poolings(poolings)}", **how)
        style(axes, title=title, x="PCA components")
        axes.set_xticks(sorted({cell.dim for cell in study.cells}))
    panels[0].set_ylabel("mean AUC over targets")
    legend_below(figure, columns=3)
    return figure


def _read_value(cell: DimensionCell, which: str) -> float:
    return cell.fisher if which == "fisher" else cell.best


def _name_poolings(poolings: Sequence[Pooling]) -> str:
    return " and ".join(poolings)


def _choose_dimension(study: DimensionStudy) -> int:
    """The default dimension if it was studied, else the smallest."""
    dims = [cell.dim for cell in study.cells]
    return USUAL if USUAL in dims else min(dims)
