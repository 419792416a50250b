"""The paper's features (Equation 3) as a family: which encoders, modes and sites to fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from prefill_router.activations import DEFAULT_POOLINGS, POOLINGS, Activations, Pooling, Site
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.features.base import FamilyConfig, FamilyEntry, Need
from prefill_router.features.extractor import FeatureExtractor
from prefill_router.features.modes import Mode
from prefill_router.layers import Method, Pinned, Scope
from prefill_router.progress import Progress

SELECTIONS: tuple[Method, ...] = ("fisher", "grid")


@final
@dataclass(frozen=True, kw_only=True)
class PrefillConfig(FamilyConfig):
    """Options of the prefill features.

    Attributes:
        encoders: The encoders to read; if empty, every one whose states are given.
        mode: `single`, `per_model` or `auto`: which encoder is read for which target.
        select: How a site is chosen: `fisher`, `grid`, one site such as `mean.5` for all targets,
            or the site of each target by its name.
        scope: Whether each target has its own site, or the pool has one for all.
        dim: Components of each block, unless the grid search chooses.
        poolings: The candidate poolings.
        all_layers: Whether layers below ceil(L/2) are candidates too.
        assignments: For `per_model`: the name of each target's encoder.
    """

    encoders: tuple[str, ...] = ()
    mode: Mode = "single"
    select: str | Mapping[str, str] = "fisher"
    scope: Scope = "target"
    dim: int = 100
    poolings: tuple[Pooling, ...] = DEFAULT_POOLINGS
    all_layers: bool = False
    assignments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self._pinned  # an invalid site is refused at once

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states of the named encoders."""
        return tuple(Need(name) for name in self.encoders)

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> FeatureExtractor:
        """Select sites and fit their reducers on the train rows."""
        used = self._used(states)
        pinned = self._pinned
        return FeatureExtractor.fit(
            used,
            train,
            mode=self.mode,
            method=_method(self.select) if pinned is None else "pinned",
            scope=self.scope,
            dim=self.dim,
            poolings=self.poolings,
            all_layers=self.all_layers,
            pinned=pinned,
            assignments=_assigned(used, self.assignments) if self.assignments else None,
            seed=seed,
            progress=progress,
        )

    @property
    def _pinned(self) -> Pinned | None:
        if isinstance(self.select, str):
            return None if self.select in SELECTIONS else Site.parse(self.select)
        return {target: Site.parse(site) for target, site in self.select.items()}

    def _used(self, states: Sequence[Activations]) -> list[Activations]:
        """The states that are read: those of the named encoders, or all that have candidates."""
        if self.encoders:
            named = [store for store in states if store.provenance.encoder in self.encoders]
            lacking = set(self.encoders) - {store.provenance.encoder for store in named}
            if lacking:
                raise ConfigError(f"no states of the encoders {sorted(lacking)} are given")
            return named
        return [s for s in states if any(site.pooling in POOLINGS for site in s.sites)]


def _method(select: str | Mapping[str, str]) -> Method:
    return "grid" if select == "grid" else "fisher"


def _assigned(
    stores: Sequence[Activations], assignments: Mapping[str, str]
) -> dict[str, Activations]:
    names = [store.provenance.encoder for store in stores]
    shared = sorted({n for n in assignments.values() if names.count(n) > 1})
    if shared:
        raise ConfigError(
            f"several stores have the encoders {shared}, so these names are ambiguous; give one "
            "store of each"
        )
    by_name = dict(zip(names, stores, strict=True))
    unknown = sorted(set(assignments.values()) - by_name.keys())
    if unknown:
        raise ConfigError(f"no store has the encoders {unknown}; the stores have {list(by_name)}")
    return {target: by_name[name] for target, name in assignments.items()}


ENTRY = FamilyEntry(PrefillConfig, FeatureExtractor)
