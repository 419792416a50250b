"""The layer-selection ablation over pools and encoders (the paper's appendix A), and its page.

Beside the methods that select single layers there are features of several: all candidate layers in
one block, and with them the labels of neighbours in the space of the deepest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Activations, Pooling, Site
from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.engines import Engine, LocalEngine
from prefill_router.errors import ConfigError
from prefill_router.evaluation import plain
from prefill_router.features import (
    FamilyConfig,
    FeatureSet,
    JointConfig,
    NeighboursConfig,
    PromptStates,
)
from prefill_router.layers import Ablation, ablation, candidate_sites, search, survey
from prefill_router.plotting import Figure
from prefill_router.probes import FOLDS, Probes, auc_over_folds
from prefill_router.progress import Progress
from prefill_router.reporting import (
    CHANCE_AUC,
    QUIET,
    UNDERLINED,
    Cell,
    Note,
    Report,
    ReportFigure,
    Row,
    Section,
    Table,
    legend_below,
    name_rows,
    new_figure,
    stroke,
    style,
)
from prefill_router_lab.depth import encoder_labels
from prefill_router_lab.studies.layer_options import AblationOptions

FISHER, LIMIT = "Fisher J", "BestLR"
JOINT, NEAR = "All layers", "Neighbours too"
BLOCKS = (JOINT, NEAR)
"""Features of several layers."""
_TIED = 5e-5
"""Half a unit of the fourth digit, the last that the paper prints."""


@final
@dataclass(frozen=True)
class EncoderAblation:
    """The selection methods compared on one pool with one encoder.

    Attributes:
        pool: The pool's name.
        encoder: The encoder's label.
        ways: The result of each selection method.
        blocks: The mean AUC of probes on features of several layers, by name, see `BLOCKS`.
    """

    pool: str
    encoder: str
    ways: Ablation
    blocks: Mapping[str, float]

    @property
    def practical(self) -> dict[str, float]:
        """The mean AUC of every selection method except the limit, which needs all probes."""
        return {s.name: s.auc for s in self.ways.selectors if s.name != LIMIT}

    @property
    def behind(self) -> float:
        """How far Fisher J is below the best practical method; 0 where it is the best."""
        return max(self.practical.values()) - self.ways[FISHER].auc

    @property
    def short(self) -> float:
        """How far Fisher J is below the limit."""
        return self.ways[LIMIT].auc - self.ways[FISHER].auc

    @property
    def auc(self) -> dict[str, float]:
        """The mean AUC of everything that was compared, by name."""
        return {s.name: s.auc for s in self.ways.selectors} | dict(self.blocks)

    def row(self) -> dict[str, Any]:
        """One row of the paper's table."""
        return {"pool": self.pool, "encoder": self.encoder, **self.auc}


@final
@dataclass(frozen=True)
class AblationStudy:
    """All pools and encoders.

    Attributes:
        rows: The results by pool, then encoder.
        skipped: Pools and encoders whose store lacks the states of some queries.
        dim: Number of PCA components of the probes.
        poolings: Poolings of the candidate sites.
        seed: Random seed of the folds.
    """

    rows: tuple[EncoderAblation, ...]
    skipped: tuple[tuple[str, str], ...]
    dim: int
    poolings: tuple[Pooling, ...]
    seed: int

    @property
    def best(self) -> int:
        """In how many rows Fisher J is the best practical method, or tied to four digits."""
        return sum(row.behind < _TIED for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "dim": self.dim,
            "poolings": list(self.poolings),
            "seed": self.seed,
            "fisher_best": self.best,
            "rows": [
                {
                    **{name: _make_plain(value) for name, value in row.row().items()},
                    "targets": list(row.ways.targets),
                    "fisher_behind": row.behind,
                    "fisher_short_of_limit": row.short,
                }
                for row in self.rows
            ],
            "skipped": [list(pair) for pair in self.skipped],
        }

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study."""
        rows = [row.row() for row in self.rows]
        components = f"{self.dim} components, {' and '.join(self.poolings)} states"
        return Report(
            name="layers",
            title=title,
            summary=summary(self),
            facts={**facts, "probes": components},
            parts=[
                ReportFigure("layers", draw(self), rows, _CAPTION),
                Section(
                    "Mean AUC by selection method", [Note(UNDERLINED), _tabulate_methods(self)]
                ),
                Section("What the columns mean", [_MEANINGS]),
            ],
            numbers=self.to_dict(),
            tables={"layers": rows},
            short=_tabulate_summary(self),
        )


def ablation_study(
    pools: Mapping[str, RoutingDataset],
    stores: Sequence[Activations],
    options: AblationOptions | None = None,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> AblationStudy:
    """Compare the methods of selecting a layer for every pool with every encoder.

    Args:
        pools: The train part of each pool's dataset, by name.
        stores: States, one store per encoder; a store that lacks queries of a pool is skipped.
        options: The candidate sites, the probes' components, and the folds.
        engine: Where the work runs; in this process if not given.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: There is no pool or store, no store holds a pool's queries, or no target can be
            evaluated.
    """
    options, labels = options or AblationOptions(), encoder_labels(stores)
    pairs = [(pool, label) for pool in pools for label in labels]
    stores_by_label = dict(zip(labels, stores, strict=True))
    skipped = [
        (p, label) for p, label in pairs if stores_by_label[label].missing(pools[p].prompt_keys)
    ]
    shared = _AblationInputs(pools, stores_by_label, options)
    rows = (engine or LocalEngine()).map(
        _ablate,
        shared,
        [pair for pair in pairs if pair not in skipped],
        finish=lambda _pair, row: row,
        progress=progress,
    )
    if not rows:
        raise ConfigError(
            f"{len(stores)} stores were given; none has the states of all train queries of "
            f"{list(pools)}; encode these queries, or name other stores"
        )
    return AblationStudy(tuple(rows), tuple(skipped), options.dim, options.poolings, options.seed)


@final
@dataclass(frozen=True, eq=False)
class _AblationInputs:
    """What the tasks of the study share: pools and stores by name, and the options."""

    pools: Mapping[str, RoutingDataset]
    stores: Mapping[str, Activations]
    options: AblationOptions


def _ablate(shared: _AblationInputs, pair: tuple[str, str], progress: Progress) -> EncoderAblation:
    train, store, options = shared.pools[pair[0]], shared.stores[pair[1]], shared.options
    dim, poolings, seed = options.dim, options.poolings, options.seed
    sites = candidate_sites(store, poolings=poolings, all_layers=options.all_layers)
    geometry = survey(store, train, sites=sites, dim=dim, progress=progress)
    grid = search(store, train, sites=sites, dims=(dim,), seed=seed, progress=progress)
    ways = ablation(geometry, grid, dim=dim, poolings=poolings)
    blocks = _probe_blocks(store, train, ways, sites=sites, seed=seed, progress=progress)
    return EncoderAblation(*pair, ways, blocks)


def _probe_blocks(
    store: Activations,
    train: RoutingDataset,
    ways: Ablation,
    *,
    sites: Sequence[Site],
    seed: int,
    progress: Progress,
) -> dict[str, float]:
    """The mean AUC of probes on each of `BLOCKS`, on the folds and targets of the other methods."""
    encoder, folds = store.provenance.encoder, stratified_folds(train, count=FOLDS, seed=seed)
    sites_by_encoder = {encoder: tuple(site.name for site in sites)}
    block = JointConfig(encoders=(encoder,), sites=sites_by_encoder, dim=ways.dim)
    near = NeighboursConfig(
        encoder=encoder,
        site=max(sites).name,
        kernel="exponential",
        standardise=True,
        statistics=("weighted share",),
        smoothing=3.0,
    )
    columns = [train.pool.names.index(name) for name in ways.targets]
    aucs = {}
    with progress.task("several layers", total=len(BLOCKS) * FOLDS) as advance:
        for name, families in zip(BLOCKS, ((block,), (block, near)), strict=True):
            scores = np.full(train.correct.shape, np.nan, dtype=np.float32)
            for fold in range(FOLDS):
                is_held_out = folds == fold
                scores[is_held_out] = _score_held_out(families, store, train, is_held_out)
                advance()
            aucs[name] = float(auc_over_folds(scores, train.correct, folds)[columns].mean())
    return aucs


def _score_held_out(
    families: Sequence[FamilyConfig],
    store: Activations,
    train: RoutingDataset,
    is_held_out: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """Scores [query, target] of one fold by probes on features, both fitted on the others."""
    ids = np.array(train.query_ids)
    rest, part = (train.select(ids[is_held_out == side].tolist()) for side in (False, True))
    features = FeatureSet(tuple(family.fit(rest, [store]) for family in families))
    learned_features, scored_features = (
        features.read(PromptStates.of_dataset(rows, [store])) for rows in (rest, part)
    )
    return Probes.fit(learned_features, rest.correct).scores(scored_features)


def _make_plain(value: Any) -> Any:
    return plain(value) if isinstance(value, float) else value


_CAPTION = (
    "How far each selection method is from probing every layer for every target, in mean AUC; "
    "further left is worse. 0 is the limit of single layers, which only features of several exceed."
)
_MEANINGS = {
    "mean AUC": "The AUC of five-fold linear probes on the train rows, averaged over the targets; "
    "0.5 is chance.",
    "Random": "The expectation over the candidate layers.",
    "Last": "The deepest layer.",
    "d_eff": "The layer with the highest effective dimensionality.",
    "alpha": "The least anisotropic layer.",
    FISHER: "Each target's layer of greatest class separability, which needs no probes.",
    LIMIT: "Each target's layer with the best probe: the limit of single layers, for reference.",
    JOINT: "All candidate layers in one block of as many components.",
    NEAR: "That block, and the labels of neighbours in the space of the deepest layer.",
}


def summary(study: AblationStudy) -> list[str]:
    """The result in a few sentences."""
    count, behind = len(study.rows), max(row.behind for row in study.rows)
    lines = [
        "Fisher J is the best practical method of selecting a layer, or tied to four digits, in "
        f"{study.best} of {count} combinations of pool and encoder"
        + (f", and at most {behind:.4f} below the best elsewhere" if study.best < count else "")
        + f". It stays within {max(row.short for row in study.rows):.4f} of probing every layer."
    ]
    lines += [
        f"Left out: {pool} with {encoder}, whose store lacks some of its queries."
        for pool, encoder in study.skipped
    ]
    return lines


def _tabulate_methods(study: AblationStudy) -> Table:
    """The paper's table; the best practical method of each row is underlined."""
    rows: list[Row] = []
    for row in study.rows:
        top = max(row.practical.values())
        cells = [
            Cell(f"{auc:.4f}", best=name in row.practical and auc == top and auc > CHANCE_AUC)
            for name, auc in row.auc.items()
        ]
        rows.append([f"{row.pool}, {row.encoder}", *cells])
    return Table(["Pool, encoder", *study.rows[0].auc], rows)


def _tabulate_summary(study: AblationStudy) -> Table:
    rows = [
        [row.pool, row.encoder, *(f"{auc:.4f}" for auc in row.auc.values())] for row in study.rows
    ]
    return Table(["pool", "encoder", *study.rows[0].auc], rows)


def draw(study: AblationStudy) -> Figure:
    """Draw the distance from the limit of all that was compared, a line per pool and encoder."""
    ordered = study.rows[::-1]
    figure = new_figure(9.4, 1.8 + 0.34 * len(ordered))
    axes = figure.add_subplot()
    names = [name for name in ordered[0].auc if name != LIMIT]
    for place, name in enumerate(names):
        colour, _, marker = stroke(place)
        far = [row.auc[name] - row.auc[LIMIT] for row in ordered]
        axes.plot(far, range(len(ordered)), marker, color=colour, ms=6, label=name)
    axes.axvline(0, color=QUIET, lw=1, ls=":")
    style(
        axes,
        title="Against the best single layers, by selection method",
        x="mean AUC minus that of BestLR",
    )
    name_rows(axes, [f"{row.pool}, {row.encoder}" for row in ordered])
    legend_below(figure, columns=len(names))
    return figure
