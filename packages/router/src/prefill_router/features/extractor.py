"""The features of Equation 3: the block of features of each target, side by side.

A block is the reduced states of one site of one encoder; targets may share it. An extractor is
saved as plain values and arrays, which are checked when they are read back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from prefill_router import mapped_matrix
from prefill_router.activations import (
    DEFAULT_POOLINGS,
    Activations,
    Pooling,
    Provenance,
    Site,
)
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FitError
from prefill_router.features.base import (
    Columns,
    EncoderStates,
    Family,
    PromptStates,
    SavedStates,
    find_store,
    states_like,
)
from prefill_router.layers import (
    Method,
    Pinned,
    Scope,
    Selection,
    SiteChoice,
    auc_of_selection,
    candidate_sites,
    enough_labels,
    fit_reducer,
    select,
)
from prefill_router.progress import Progress
from prefill_router.reduction import Reducer
from prefill_router.serialization import (
    NO_TENSORS,
    StrictModel,
    Tensors,
    check_names,
    under,
    validate,
)
from prefill_router.short_repr import short_repr

Mode = Literal["single", "per_model", "auto"]


@final
@dataclass(frozen=True, eq=False)
class Assignment:
    """The store and the site of each target.

    Attributes:
        stores: One store per target.
        choices: One choice of a site per target.
        report: How they were chosen, as plain values.
    """

    stores: tuple[Activations, ...]
    choices: tuple[SiteChoice, ...]
    report: Mapping[str, Any]


def assign(
    stores: Sequence[Activations],
    train: RoutingDataset,
    *,
    mode: Mode,
    method: Method,
    scope: Scope,
    dim: int,
    poolings: Sequence[Pooling],
    all_layers: bool,
    pinned: Pinned | None,
    assignments: Mapping[str, Activations] | None,
    seed: int,
    progress: Progress | None,
) -> Assignment:
    """Select sites within each store, then stores; the arguments are `FeatureExtractor.fit`'s."""
    _check_stores(stores)
    _check_assignments(mode, assignments, train.pool.names, stores)

    def select_in(store: Activations) -> Selection:
        sites = None
        if method != "pinned":
            sites = candidate_sites(store, poolings=poolings, all_layers=all_layers)
        return select(
            store,
            train,
            method=method,
            scope=scope,
            dim=dim,
            sites=sites,
            pinned=pinned,
            seed=seed,
            progress=progress,
        )

    selections = [select_in(store) for store in stores]
    if assignments is not None:
        provenances = [store.provenance for store in stores]
        of = [provenances.index(assignments[name].provenance) for name in train.pool.names]
        return _gather_assignment(mode, stores, selections, of, None)
    if len(stores) == 1:
        return _gather_assignment(mode, stores, selections, [0] * len(train.pool), None)
    auc = _auc_in_stores(stores, selections, train, seed)
    return _gather_assignment(mode, stores, selections, _best_encoders(auc, train, mode), auc)


def _auc_in_stores(
    stores: Sequence[Activations],
    selections: Sequence[Selection],
    train: RoutingDataset,
    seed: int,
) -> Float64[NDArray[np.float64], "encoder target"]:
    pairs = zip(stores, selections, strict=True)
    return np.stack([auc_of_selection(store, train, chosen, seed=seed) for store, chosen in pairs])


def _best_encoders(
    auc: Float64[NDArray[np.float64], "encoder target"], train: RoutingDataset, mode: Mode
) -> list[int]:
    """The encoder of each target: the best for the pool, or for each target with enough labels."""
    usable = ~np.isnan(auc).any(axis=0)
    if not usable.any():
        raise FitError(
            "no target has enough right and wrong answers to compare encoders; add labelled "
            "queries, or give one store"
        )
    pool = int(auc[:, usable].mean(axis=1).argmax())
    alone = usable & enough_labels(train) & (mode == "auto")
    return [int(auc[:, k].argmax()) if alone[k] else pool for k in range(auc.shape[1])]


def _check_stores(stores: Sequence[Activations]) -> None:
    if not stores:
        raise ConfigError("no store is given; features need the states of at least one encoder")
    distinct = {store.provenance for store in stores}
    if len(distinct) < len(stores):
        names = ", ".join(store.name for store in stores)
        raise ConfigError(f"two stores have the same encoder and settings: {names}; give one")


def _check_assignments(
    mode: Mode,
    assignments: Mapping[str, Activations] | None,
    targets: Sequence[str],
    stores: Sequence[Activations],
) -> None:
    if (mode == "per_model") != (assignments is not None):
        what = "missing" if assignments is None else "given"
        raise ConfigError(
            f"the mode is {mode!r} and assignments are {what}; give assignments with the mode "
            "'per_model', and leave them out with other modes"
        )
    if assignments is None:
        return
    if set(assignments) != set(targets):
        raise ConfigError(
            f"assignments name {sorted(assignments)}; they must name every target of the pool, "
            f"{sorted(targets)}, and no other"
        )
    provenances = {store.provenance for store in stores}
    for name, store in assignments.items():
        if store.provenance not in provenances:
            raise ConfigError(f"{name!r} is assigned {store.name}, which isn't among the stores")


def _gather_assignment(
    mode: Mode,
    stores: Sequence[Activations],
    selections: Sequence[Selection],
    store_of_target: Sequence[int],
    auc: Float64[NDArray[np.float64], "encoder target"] | None,
) -> Assignment:
    targets = selections[0].targets
    encoders = [
        {"encoder": store.provenance.encoder, **selection.to_dict()}
        for store, selection in zip(stores, selections, strict=True)
    ]
    report: dict[str, Any] = {
        "mode": mode,
        "encoders": encoders,
        "encoder_of": dict(zip(targets, store_of_target, strict=True)),
    }
    if auc is not None:
        report["auc"] = [
            {name: None if np.isnan(v) else v for name, v in zip(targets, row, strict=True)}
            for row in auc.tolist()
        ]
    return Assignment(
        tuple(stores[i] for i in store_of_target),
        tuple(selections[i].choices[k] for k, i in enumerate(store_of_target)),
        report,
    )


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Block:
    """The feature columns of one site.

    Attributes:
        source: The kind of states.
        site: The layer and pooling.
        reducer: The reducer, fitted on the train rows.
    """

    source: EncoderStates
    site: Site
    reducer: Reducer

    @property
    def provenance(self) -> Provenance:
        """How its states are made."""
        return self.source.provenance

    @property
    def dim(self) -> int:
        """The number of columns."""
        return self.reducer.dim

    def transform(
        self, activations: Activations, keys: Sequence[str]
    ) -> Float32[NDArray[np.float32], "query dim"]:
        """The columns of these prompts.

        Float32 states are rounded here like the train rows'; others must be rounded already.

        Raises:
            ProvenanceError: The states are of another encoder, site or type.
            StoreError: Some states are missing.
        """
        result = mapped_matrix.empty(len(keys), self.dim)
        for rows, states in states_like(self.source, self.site, activations, keys):
            result[rows] = self.reducer.transform(states)
        return result


@short_repr
@final
@dataclass(frozen=True, eq=False)
class FeatureExtractor(Family):
    """Turns states into the predictor's input. Frozen; made by `fit` or `from_dict`.

    Attributes:
        targets: The targets' names.
        blocks: The distinct blocks, in the order of the targets that first need them.
        block_of: The block of each target, as a position in `blocks`.
        selection: How each target's block was selected, as plain values for the card.
    """

    kind: ClassVar[str] = "prefill"

    targets: tuple[str, ...]
    blocks: tuple[Block, ...]
    block_of: tuple[int, ...]
    selection: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.targets or len(set(self.targets)) < len(self.targets):
            problem = "names repeat" if self.targets else "there is no target"
            raise ConfigError(f"the targets are {self.targets}: {problem}; give each one name")
        if len(self.block_of) != len(self.targets) or set(self.block_of) != set(
            range(len(self.blocks))
        ):
            raise ConfigError(
                f"{len(self.targets)} targets with the blocks {self.block_of}, of "
                f"{len(self.blocks)}; every target needs one, and every block a target"
            )

    @classmethod
    def fit(
        cls,
        stores: Sequence[Activations],
        train: RoutingDataset,
        *,
        mode: Mode = "single",
        method: Method = "fisher",
        scope: Scope = "target",
        dim: int = 100,
        poolings: Sequence[Pooling] = DEFAULT_POOLINGS,
        all_layers: bool = False,
        pinned: Pinned | None = None,
        assignments: Mapping[str, Activations] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> "FeatureExtractor":
        """Select sites and fit their reducers on the train rows.

        Args:
            stores: The states of all train queries, one store per encoder.
            train: The train rows.
            mode: `single` reads one encoder for all targets, the best for the pool where several
                are given; `per_model` the assigned one for each; `auto` the best for each.
            method: How sites are chosen within an encoder; see `layers.select`.
            scope: Whether each target has its own site, or the pool has one for all.
            dim: Components of each block, unless the grid search chooses.
            poolings: The candidate poolings.
            all_layers: Whether layers below ceil(L/2) are candidates too.
            pinned: The site, or the site of each target, for the method `pinned`.
            assignments: For `per_model`: the store of each target, among `stores`.
            seed: The seed of the folds, where cross-validation is used.
            progress: Shows the progress.

        Raises:
            ConfigError: The options contradict each other.
            FitError: No target can be judged.
            StoreError: States are missing.
        """
        assignment = assign(
            stores,
            train,
            mode=mode,
            method=method,
            scope=scope,
            dim=dim,
            poolings=poolings,
            all_layers=all_layers,
            pinned=pinned,
            assignments=assignments,
            seed=seed,
            progress=progress,
        )
        return cls(train.pool.names, *_distinct_blocks(assignment, train), assignment.report)

    @property
    def width(self) -> int:
        """The number of features of a query."""
        return sum(block.dim for block in self.blocks)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kinds of states that are read, each once."""
        return tuple(dict.fromkeys(block.source for block in self.blocks))

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The sites of one encoder that must be read, sorted."""
        return tuple(sorted({b.site for b in self.blocks if b.provenance == provenance}))

    def block_of_target(self) -> tuple[Block, ...]:
        """The block of each target, in the targets' order."""
        return tuple(self.blocks[number] for number in self.block_of)

    def check_targets(self, names: tuple[str, ...]) -> None:
        """Check that it was fitted for these targets, in this order.

        Raises:
            ConfigError: It was fitted for others.
        """
        if names != self.targets:
            raise ConfigError(f"the features are for {self.targets}; the pool has {names}")

    def read(self, reading: PromptStates) -> Columns:
        """The features of these queries."""
        return self.transform(reading.states, reading.keys)

    def transform(
        self, stores: Sequence[Activations], keys: Sequence[str]
    ) -> Float32[NDArray[np.float32], "query feature"]:
        """The features of these prompts, one row per key.

        Args:
            stores: The states of every encoder in `sources`; others are ignored.
            keys: The content keys of the prompts (`data.prompt_key`).

        Raises:
            ProvenanceError: An encoder's states are missing, or were made in another way.
            StoreError: States of some prompts are missing.
        """
        parts = [
            block.transform(find_store(stores, block.provenance), keys) for block in self.blocks
        ]
        return mapped_matrix.join_columns(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the rest of the extractor is in `tensors`."""
        sources = self.sources
        return {
            "kind": self.kind,
            "targets": list(self.targets),
            "encoders": [SavedStates.of(source) for source in sources],
            "blocks": [
                {"encoder": sources.index(b.source), "site": b.site.name, "dim": b.dim}
                for b in self.blocks
            ],
            "block_of": list(self.block_of),
            "selection": dict(self.selection),
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays, by names such as `block0.mean`."""
        return {
            f"block{number}.{name}": array
            for number, block in enumerate(self.blocks)
            for name, array in block.reducer.tensors().items()
        }

    @classmethod
    def parse(cls, config: Mapping[str, Any], tensors: Tensors = NO_TENSORS) -> "FeatureExtractor":
        """Like `Part.parse`, for blocks that share encoders."""
        saved = validate(_SavedExtractor, config, what=cls.display_name())
        sources = [encoder.source() for encoder in saved.encoders]
        blocks = tuple(
            _read_block(sources, block, under(tensors, f"block{i}."))
            for i, block in enumerate(saved.blocks)
        )
        extractor = cls(tuple(saved.targets), blocks, tuple(saved.block_of), saved.selection)
        check_names(tensors, extractor.tensors(), cls.display_name())
        return extractor


def _distinct_blocks(
    assignment: Assignment, train: RoutingDataset
) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """The distinct blocks, and the position of each target's block."""
    pairs = list(zip(assignment.stores, assignment.choices, strict=True))
    places = {}
    for store, choice in pairs:
        key = (store.provenance, choice.site, choice.dim)
        if key not in places:
            reducer = fit_reducer(store, train, site=choice.site, dim=choice.dim)
            places[key] = Block(EncoderStates.of(store), choice.site, reducer)
    blocks: dict[tuple[Provenance, Site, int], Block] = {}
    for block in places.values():  # different `dim` beyond the rank give equal blocks
        blocks.setdefault((block.provenance, block.site, block.dim), block)
    order = list(blocks)
    mine = [places[store.provenance, choice.site, choice.dim] for store, choice in pairs]
    return tuple(blocks.values()), tuple(order.index((b.provenance, b.site, b.dim)) for b in mine)


class _SavedBlock(StrictModel):
    encoder: NonNegativeInt
    site: str
    dim: PositiveInt


class _SavedExtractor(StrictModel):
    kind: Literal["prefill"]
    targets: list[str]
    encoders: list[SavedStates]
    blocks: list[_SavedBlock]
    block_of: list[NonNegativeInt]
    selection: dict[str, Any]


def _read_block(
    sources: list[EncoderStates], block: _SavedBlock, tensors: dict[str, NDArray[Any]]
) -> Block:
    if block.encoder >= len(sources):
        raise ConfigError(f"a block is of encoder {block.encoder}; there are {len(sources)}")
    source, site = sources[block.encoder], Site.parse(block.site)
    if site.layer > source.provenance.num_layers:
        raise ConfigError(
            f"a block reads {site.name}; the encoder has {source.provenance.num_layers} layers"
        )
    hidden = source.provenance.hidden_size
    return Block(source, site, Reducer.from_tensors(tensors, hidden=hidden, dim=block.dim))
