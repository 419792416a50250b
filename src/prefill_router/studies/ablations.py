"""The layer-selection ablation over pools and encoders (the paper's appendix A), and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.activations import Activations, Pooling
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation import plain
from prefill_router.layers import (
    Ablation,
    ablation,
    candidate_sites,
    encoder_labels,
    search,
    survey,
)
from prefill_router.plotting import Figure
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import (
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

FISHER, LIMIT = "Fisher J", "BestLR"
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
    """

    pool: str
    encoder: str
    ways: Ablation

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

    def row(self) -> dict[str, Any]:
        """One row of the paper's table."""
        found = {s.name: s.auc for s in self.ways.selectors}
        return {"pool": self.pool, "encoder": self.encoder, **found}


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
                    **{name: _plain(value) for name, value in row.row().items()},
                    "targets": list(row.ways.targets),
                    "fisher_behind": row.behind,
                    "fisher_short_of_limit": row.short,
                }
                for row in self.rows
            ],
            "skipped": [list(pair) for pair in self.skipped],
        }


def ablation_study(
    pools: Mapping[str, RoutingDataset],
    stores: Sequence[Activations],
    *,
    dim: int = 100,
    poolings: Sequence[Pooling] = ("last",),
    all_layers: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> AblationStudy:
    """Compare the methods of selecting a layer for every pool with every encoder.

    Args:
        pools: The train part of each pool's dataset, by name.
        stores: States, one store per encoder; a store that lacks queries of a pool is skipped.
        dim: Number of PCA components of the probes.
        poolings: Poolings of the candidate sites; the last token alone by default, as in the paper.
        all_layers: Whether layers below ceil(L/2) are candidates too.
        seed: Random seed of the folds.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: There is no pool or store, no store holds a pool's queries, or no target can be
            evaluated.
    """
    shown, labels = progress or SilentProgress(), encoder_labels(stores)
    rows, skipped = list[EncoderAblation](), list[tuple[str, str]]()
    for pool, train in pools.items():
        for label, store in zip(labels, stores, strict=True):
            if store.missing(train.prompt_keys):
                skipped.append((pool, label))
                continue
            sites = candidate_sites(store, poolings=poolings, all_layers=all_layers)
            found = survey(store, train, sites=sites, dim=dim, progress=shown)
            grid = search(store, train, sites=sites, dims=(dim,), seed=seed, progress=shown)
            rows.append(
                EncoderAblation(pool, label, ablation(found, grid, dim=dim, poolings=poolings))
            )
    if not rows:
        raise ConfigError(
            f"none of {len(stores)} stores holds the states of all train queries of a pool of "
            f"{list(pools)}; encode them, or name other stores"
        )
    return AblationStudy(tuple(rows), tuple(skipped), dim, tuple(poolings), seed)


def _plain(value: Any) -> Any:
    return plain(value) if isinstance(value, float) else value


_CAPTION = (
    "How far each selection method stays below probing every layer for every target, in mean AUC; "
    "0 is the limit that nothing can exceed, further left is worse."
)
_MEANINGS = {
    "mean AUC": "The AUC of five-fold linear probes on the train rows, averaged over the targets; "
    "0.5 is chance.",
    "Random": "The expectation over the candidate layers.",
    "Last": "The deepest layer.",
    "d_eff": "The layer with the highest effective dimensionality.",
    "alpha": "The least anisotropic layer.",
    FISHER: "Each target's layer of greatest class separability, which needs no probes.",
    LIMIT: "Each target's layer with the best probe: the limit, for reference only.",
}


def report_ablations(study: AblationStudy, *, title: str, known: Mapping[str, str]) -> Report:
    """The content of the study's report."""
    rows = [row.row() for row in study.rows]
    components = f"{study.dim} components, {' and '.join(study.poolings)} states"
    return Report(
        name="layers",
        title=title,
        summary=summary(study),
        known={**known, "probes": components},
        parts=[
            ReportFigure("layers", draw(study), rows, _CAPTION),
            Section("Mean AUC by selection method", [Note(UNDERLINED), _table(study)]),
            Section("What the columns mean", [_MEANINGS]),
        ],
        numbers=study.to_dict(),
        tables={"layers": rows},
        short=_short(study),
    )


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


def _table(study: AblationStudy) -> Table:
    """The paper's table; the best practical method of each row is underlined."""
    rows: list[Row] = []
    for row in study.rows:
        top = max(row.practical.values())
        cells = [
            Cell(f"{one.auc:.4f}", best=one.name != LIMIT and one.auc == top)
            for one in row.ways.selectors
        ]
        rows.append([f"{row.pool}, {row.encoder}", *cells])
    return Table(["Pool, encoder", *(one.name for one in study.rows[0].ways.selectors)], rows)


def _short(study: AblationStudy) -> Table:
    ways = [selector.name for selector in study.rows[0].ways.selectors]
    rows = [
        [row.pool, row.encoder, *(f"{row.ways[name].auc:.4f}" for name in ways)]
        for row in study.rows
    ]
    return Table(["pool", "encoder", *ways], rows)


def draw(study: AblationStudy) -> Figure:
    """Draw every method's distance from the limit, one line per pool and encoder."""
    ordered = study.rows[::-1]
    figure = new_figure(9.4, 1.8 + 0.34 * len(ordered))
    axes = figure.add_subplot()
    names = list(ordered[0].practical)
    for place, name in enumerate(names):
        colour, _, marker = stroke(place)
        far = [row.ways[name].auc - row.ways[LIMIT].auc for row in ordered]
        axes.plot(far, range(len(ordered)), marker, color=colour, ms=6, label=name)
    axes.axvline(0, color=QUIET, lw=1, ls=":")
    style(axes, title="Below the limit, by selection method", x="mean AUC minus that of BestLR")
    name_rows(axes, [f"{row.pool}, {row.encoder}" for row in ordered])
    legend_below(figure, columns=len(names))
    return figure
