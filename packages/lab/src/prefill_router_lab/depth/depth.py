"""What encoders and their layers know: correctness by depth, and the encoder-target sweep.

Three readings of every site, on the train rows alone: Fisher J, the out-of-fold AUC of linear
probes, and the leave-one-out AUC of the votes of nearest neighbours. The probes' AUC within each
subject tells what a layer knows beyond the subject of a query.

`sweep` finds which encoder predicts which target best (section 5.1 of the paper).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations, Site
from prefill_router.data import RoutingDataset, binary, stratified_folds
from prefill_router.errors import ConfigError
from prefill_router.geometry import Moments, SiteStates
from prefill_router.layers import (
    Grid,
    Selection,
    SiteScores,
    Survey,
    auc_of_selection,
    candidate_sites,
    columns_by_site,
    enough_labels,
    fit_reducer,
    mean_over_targets,
    plain,
    select,
    survey,
)
from prefill_router.neighbours import NeighbourIndex
from prefill_router.probes import (
    FOLDS,
    Probes,
    auc_over_folds,
    known_auc,
    out_of_fold_scores,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reduction import Reducer, standard_scale
from prefill_router.short_repr import short_repr
from prefill_router.statistics import auc_by_target, known_mean
from prefill_router_lab.depth.options import DepthOptions, SweepOptions

NEIGHBOURS = 25
"""The number of neighbours that vote, as in the paper's kNN baseline."""
SUBJECTS = 20
"""The most subjects that are named; the mean of the others is one more."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class DepthProfile:
    """What every site of one encoder knows of the targets' correctness.

    Attributes:
        encoder: The encoder's label.
        num_layers: Blocks of the encoder, by which depths are divided.
        queries: The number of train rows.
        survey: The geometry of the sites, with Fisher J.
        grid: The probes' AUC at the sites, with one number of components: the mean over folds.
        votes: The AUC of neighbours' votes; NaN where undefined.
        subjects: The domains of the queries, or their benchmarks, those with most rows first.
        by_subject: The probes' AUC over the rows of each subject, of all folds together, since a
            fold has few of them. NaN for a target with fewer than ten labels of either class.
    """

    encoder: str
    num_layers: int
    queries: int
    survey: Survey
    grid: Grid
    votes: SiteScores
    subjects: tuple[str, ...]
    by_subject: Float64[NDArray[np.float64], "site subject target"]

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites, sorted."""
        return self.survey.sites

    def readings(self) -> dict[str, Float64[NDArray[np.float64], " site"]]:
        """Each reading of the sites, as its mean over the targets for which it is defined."""
        return {
            "fisher": mean_over_targets(self.survey.fisher),
            "probe_auc": mean_over_targets(self.grid.auc[:, 0]),
            "votes_auc": mean_over_targets(self.votes),
        }

    def subject_means(self) -> dict[str, Float64[NDArray[np.float64], " site"]]:
        """The probes' mean AUC over targets, of each named subject and of the others' mean."""
        count = len(self.subjects)
        table = np.stack([mean_over_targets(rows) for rows in self.by_subject])
        means = {name: table[:, i] for i, name in enumerate(self.subjects[:SUBJECTS])}
        if count > SUBJECTS:
            means[f"mean of {count - SUBJECTS} others"] = known_mean(table[:, SUBJECTS:].T)
        return means

    def rows(self) -> list[dict[str, Any]]:
        """One row per site, and one per site and subject; undefined values are None."""
        places = [
            {
                "encoder": self.encoder,
                "pooling": site.pooling,
                "layer": site.layer,
                "depth": site.layer / self.num_layers,
            }
            for site in self.sites
        ]
        readings = self.readings()
        site_rows = [
            {**place, "subject": None, **{name: plain(v[i]) for name, v in readings.items()}}
            for i, place in enumerate(places)
        ]
        blank = dict.fromkeys(readings)
        return site_rows + [
            {**place, "subject": subject, **blank, "probe_auc": plain(values[i])}
            for subject, values in self.subject_means().items()
            for i, place in enumerate(places)
        ]


def depth_profile(
    activations: Activations,
    train: RoutingDataset,
    options: DepthOptions | None = None,
    *,
    sites: Sequence[Site] | None = None,
    encoder: str = "",
    progress: Progress | None = None,
) -> DepthProfile:
    """Read what every site knows; only one is in memory at a time.

    Args:
        activations: The states of all train queries.
        train: The train rows.
        options: The number of components, the folds, and the candidate sites.
        sites: The sites to read; by default all candidates.
        encoder: The encoder's label; by default its name.
        progress: Shows the number of sites done.

    Raises:
        DataError: There are fewer distinct prompts than folds.
        FitError: The states of a site are all the same.
        StoreError: States are missing or not finite.
    """
    options = options or DepthOptions()
    dim = options.dim
    sites = sites or candidate_sites(
        activations, poolings=options.poolings, all_layers=options.all_layers
    )
    geometry = survey(activations, train, sites=sites, dim=dim, progress=progress)
    folds = stratified_folds(train, count=FOLDS, seed=options.seed)
    subjects = _label_subjects(train)
    probes, within = [], []
    with (progress or SilentProgress()).task("probes", total=len(geometry.sites)) as advance:
        for site in geometry.sites:
            [scores] = out_of_fold_scores(activations, train, site=site, dims=(dim,), folds=folds)
            probes.append(auc_over_folds(scores, train.correct, folds))
            within.append([known_auc(scores, judged) for judged in subjects.values()])
            advance()
    return DepthProfile(
        encoder or activations.provenance.encoder,
        activations.provenance.num_layers,
        len(train),
        geometry,
        Grid(geometry.targets, geometry.sites, (dim,), np.stack(probes)[:, None]),
        _score_votes(activations, train, geometry.sites, progress or SilentProgress()),
        tuple(subjects),
        np.array(within, np.float64).reshape(len(probes), len(subjects), len(train.pool)),
    )


def neighbour_votes(
    activations: Activations, train: RoutingDataset, *, site: Site, neighbours: int = NEIGHBOURS
) -> Float64[NDArray[np.float64], "query target"]:
    """The share of right answers to the queries nearest to each, those with its prompt left out.

    Nearness is the cosine of the standardised states. Of a target's nearest queries those for which
    it was measured vote; NaN where there are none.

    Raises:
        FitError: The states are all the same.
        StoreError: States are missing or not finite.
    """
    vectors = _standardise_states(SiteStates(activations, site, train.prompt_keys))
    index = NeighbourIndex.of(vectors, train.prompt_keys)
    _, nearest = index.search(vectors, min(neighbours, len(train)), train.prompt_keys)
    labels = binary(train.correct)
    is_known, is_right = ~np.isnan(labels), labels == 1
    votes, count = np.zeros(labels.shape), np.zeros(labels.shape)
    for rows in nearest.T:
        voting = is_known[rows] & (rows >= 0)[:, None]
        count += voting
        votes += voting & is_right[rows]
    return np.where(count > 0, votes / np.maximum(count, 1), np.nan)


def _standardise_states(chunks: SiteStates) -> NDArray[np.float32]:
    """The standardised states, each scaled to unit length."""
    parts = [Moments.of(states) for _, states in chunks]
    moments = Moments.total(parts, hidden=len(parts[0].mean))
    scale, _ = standard_scale(moments)
    return np.concatenate([_scale_rows((states - moments.mean) / scale) for _, states in chunks])


def _scale_rows(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1), dtype=np.float32)


def _score_votes(
    activations: Activations,
    train: RoutingDataset,
    sites: Sequence[Site],
    progress: Progress,
) -> SiteScores:
    rows = []
    with progress.task("neighbours", total=len(sites)) as advance:
        for site in sites:
            votes = neighbour_votes(activations, train, site=site)
            rows.append(known_auc(votes, train.correct))
            advance()
    return np.stack(rows)


def _label_subjects(train: RoutingDataset) -> dict[str, NDArray[np.float64]]:
    """The labels within each subject, NaN elsewhere, of the targets with enough of them there."""
    several = len({query.benchmark for query in train.queries}) > 1
    names = [
        " / ".join(filter(None, (q.benchmark if several else "", q.domain))) or q.benchmark
        for q in train.queries
    ]
    counts = Counter(filter(None, names))
    labels = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        inside = np.array([other == name for other in names])
        ids = [query.id for query, here in zip(train.queries, inside, strict=True) if here]
        judged = enough_labels(train.select(ids))
        if judged.any():
            labels[name] = np.where(inside[:, None] & judged, train.correct, np.nan)
    return labels


Table = Float64[NDArray[np.float64], "encoder target"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class EncoderSweep:
    """AUC of every target under every encoder.

    Attributes:
        encoders: A distinct label for each encoder.
        targets: The targets' names.
        sites: The site of each encoder for each target.
        auc: AUC on the test part of probes fitted on the train part; NaN where undefined.
        cross_validated: Five-fold AUC on the train part.
    """

    encoders: tuple[str, ...]
    targets: tuple[str, ...]
    sites: tuple[tuple[Site, ...], ...]
    auc: Table
    cross_validated: Table

    def rows(self) -> list[dict[str, Any]]:
        """One row per encoder and target, for a table; undefined values are None."""
        return [
            {
                "encoder": encoder,
                "target": target,
                "site": self.sites[e][k].name,
                "auc": plain(self.auc[e, k]),
                "cross_validated_auc": plain(self.cross_validated[e, k]),
            }
            for e, encoder in enumerate(self.encoders)
            for k, target in enumerate(self.targets)
        ]

    def mean(self) -> Float64[NDArray[np.float64], " encoder"]:
        """The mean test AUC over the targets that have one."""
        return mean_over_targets(self.auc)


def sweep(
    stores: Sequence[Activations],
    train: RoutingDataset,
    test: RoutingDataset,
    options: SweepOptions | None = None,
    *,
    progress: Progress | None = None,
) -> EncoderSweep:
    """Probe every target under every encoder, at the site with the greatest Fisher J.

    The test part is only scored: sites, scaler, PCA and probes come from the train part.

    Args:
        stores: The states of all queries, one store per encoder.
        train: The train part.
        test: The test part, with the same targets.
        options: The number of components, the candidate poolings, and the folds.
        progress: Shows the number of encoders done.

    Raises:
        ConfigError: No store is given, or the parts have different targets.
        FitError: No target has enough labels.
        StoreError: States are missing.
    """
    if not stores or train.pool.names != test.pool.names:
        raise ConfigError(
            f"there are {len(stores)} stores, and the parts have the targets "
            f"{train.pool.names} and {test.pool.names}; give at least one store, and two parts "
            "of one dataset"
        )
    options = options or SweepOptions()
    selections, test_auc, train_auc = [], [], []
    with (progress or SilentProgress()).task("encoders", total=len(stores)) as advance:
        for store in stores:
            sites = candidate_sites(store, poolings=options.poolings)
            selections.append(select(store, train, dim=options.dim, sites=sites))
            test_auc.append(_score_test(store, train, test, selections[-1]))
            train_auc.append(auc_of_selection(store, train, selections[-1], seed=options.seed))
            advance()
    return EncoderSweep(
        encoder_labels(stores),
        train.pool.names,
        tuple(tuple(choice.site for choice in s.choices) for s in selections),
        np.stack(test_auc),
        np.stack(train_auc),
    )


def encoder_labels(stores: Sequence[Activations]) -> tuple[str, ...]:
    """Short names of the stores' encoders, numbered where they would be equal."""
    names = [store.provenance.encoder.rstrip("/").rsplit("/", 1)[-1] for store in stores]
    counts: dict[str, int] = {}
    labels = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        labels.append(f"{name} ({counts[name]})" if names.count(name) > 1 else name)
    return tuple(labels)


def _score_test(
    store: Activations, train: RoutingDataset, test: RoutingDataset, selection: Selection
) -> Float64[NDArray[np.float64], " target"]:
    result = np.empty(len(selection.targets))
    for (site, dim), columns in columns_by_site(selection).items():
        reducer = fit_reducer(store, train, site=site, dim=dim)
        probes = Probes.fit(_reduce_states(store, train, site, reducer), train.correct[:, columns])
        fitted = ~np.isnan(probes.intercepts)
        scores = np.nan_to_num(probes.scores(_reduce_states(store, test, site, reducer)))
        result[columns] = np.where(fitted, auc_by_target(scores, test.correct[:, columns]), np.nan)
    return result


def _reduce_states(
    store: Activations, part: RoutingDataset, site: Site, reducer: Reducer
) -> NDArray[np.float32]:
    chunks = SiteStates(store, site, part.prompt_keys)
    return np.concatenate([reducer.transform(states) for _, states in chunks])
