"""Equation 3: one block of features per target, concatenated; equal blocks enter once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.activations import Activations, Pooling, Provenance, Site
from prefill_router.activations.base import POOLINGS
from prefill_router.brief import brief
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.features.base import Columns, EncoderStates, Family, Reading, find_store
from prefill_router.features.block import Block
from prefill_router.features.modes import Assignment, Mode, assign
from prefill_router.layers import Method, Pinned, Scope, fit_reducer
from prefill_router.progress import Progress


@brief
@final
@dataclass(frozen=True, eq=False)
class FeatureExtractor(Family):
    """Turns states into the predictor's input. Frozen: made by `fit` or `from_dict`.

    Attributes:
        targets: The targets' names.
        blocks: The distinct blocks, in the order of the targets that first need them.
        block_of: The block of each target, a position in `blocks`.
        selection: How each target came to its block, as plain values for the card.
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
        poolings: Sequence[Pooling] = POOLINGS,
        all_layers: bool = False,
        pinned: Pinned | None = None,
        assignments: Mapping[str, Activations] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> "FeatureExtractor":
        """Select sites and fit their reducers on the train rows.

        Args:
            stores: The states of all train queries, one per encoder.
            train: The train part; nothing else is seen.
            mode: `single` reads one encoder for all targets, the best for the pool where several
                are given; `per_model` the assigned one for each; `auto` the best for each.
            method: How sites are chosen within an encoder; see `layers.select`.
            scope: Whether each target has a site of its own, or the pool has one for all.
            dim: Components of each block, unless the grid search chooses.
            poolings: Candidates.
            all_layers: Whether layers below ceil(L/2) are candidates too.
            pinned: The site, or that of each target, for the method `pinned`.
            assignments: For `per_model`: the store of each target, among `stores`.
            seed: Of the folds, where cross-validation is used.
            progress: Shows how far it is.

        Raises:
            ConfigError: The options contradict each other.
            FitError: No target can be judged.
            StoreError: States are missing.
        """
        found = assign(
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
        return cls(train.pool.names, *_distinct_blocks(found, train), found.report)

    @property
    def width(self) -> int:
        """How many features a query has."""
        return sum(block.dim for block in self.blocks)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kinds of states that are read, each once."""
        return tuple(dict.fromkeys(block.source for block in self.blocks))

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """What must be read of one encoder, sorted."""
        return tuple(sorted({b.site for b in self.blocks if b.provenance == provenance}))

    def block_of_target(self) -> tuple[Block, ...]:
        """The block of each target, in the targets' order."""
        return tuple(self.blocks[number] for number in self.block_of)

    def check_targets(self, names: tuple[str, ...]) -> None:
        """Check that it was fitted for these targets."""
        if names != self.targets:
            raise ConfigError(f"the features are for {self.targets}; the pool has {names}")

    def read(self, reading: Reading) -> Columns:
        """The features of these queries."""
        return self.transform(reading.states, reading.keys)

    def transform(
        self, stores: Sequence[Activations], keys: Sequence[str]
    ) -> Float32[NDArray[np.float32], "query feature"]:
        """The features of these prompts, one row per key.

        Args:
            stores: States of every encoder in `sources`; others are ignored.
            keys: Content keys of prompts (`data.prompt_key`).

        Raises:
            ProvenanceError: An encoder's states are missing, or were made in another way.
            StoreError: States of some prompts are missing.
        """
        parts = [
            block.transform(find_store(stores, block.provenance), keys) for block in self.blocks
        ]
        return np.concatenate(parts, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; together with `tensors` they are all of it."""
        from prefill_router.features.saved import to_dict

        return to_dict(self)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Its arrays, by names such as `block0.mean`."""
        return {
            f"block{number}.{name}": array
            for number, block in enumerate(self.blocks)
            for name, array in block.reducer.tensors().items()
        }

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> "FeatureExtractor":
        """The extractor of `to_dict` and `tensors`.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        from prefill_router.features.saved import from_dict

        return from_dict(config, tensors)


def _distinct_blocks(
    found: Assignment, train: RoutingDataset
) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """The blocks, each once, and which one each target has."""
    wanted = list(zip(found.stores, found.choices, strict=True))
    fitted = {}
    for store, choice in wanted:
        key = (store.provenance, choice.site, choice.dim)
        if key not in fitted:
            reducer = fit_reducer(store, train, site=choice.site, dim=choice.dim)
            fitted[key] = Block(EncoderStates.of(store), choice.site, reducer)
    blocks: dict[tuple[Provenance, Site, int], Block] = {}
    for block in fitted.values():  # dimensions beyond the rank come out the same
        blocks.setdefault((block.provenance, block.site, block.dim), block)
    order = list(blocks)
    mine = [fitted[store.provenance, choice.site, choice.dim] for store, choice in wanted]
    return tuple(blocks.values()), tuple(order.index((b.provenance, b.site, b.dim)) for b in mine)
