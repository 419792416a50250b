"""The families of features from hidden states: the paper's, and several sites in one block.

The paper's features (Equation 3) read one site per target. In a joint block, layers that know
different things are read together, of one encoder or of several. They enter once for all targets.
Each site is standardised, the sites are put side by side or averaged, and one PCA reduces them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from prefill_router.activations import (
    DEFAULT_POOLINGS,
    POOLINGS,
    Activations,
    Pooling,
    Provenance,
    Site,
)
from prefill_router.data import RoutingDataset
from prefill_router.encoders import recorded_name
from prefill_router.errors import ConfigError
from prefill_router.features.base import (
    Columns,
    EncoderStates,
    Family,
    FamilyConfig,
    FamilyEntry,
    Need,
    PromptStates,
)
from prefill_router.features.extractor import FeatureExtractor, Mode
from prefill_router.features.single_site import SingleSite, store_of
from prefill_router.geometry import CHUNK_BYTES, Moments, SiteStates
from prefill_router.layers import Method, Pinned, Scope, candidate_sites
from prefill_router.progress import Progress
from prefill_router.reduction import Reducer, standard_scale
from prefill_router.serialization import Saved
from prefill_router.short_repr import short_repr

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
        _ = self._pinned_sites  # an invalid site is refused at once

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
        used = self._select_states(states)
        pinned = self._pinned_sites
        return FeatureExtractor.fit(
            used,
            train,
            mode=self.mode,
            method=_selection_method(self.select) if pinned is None else "pinned",
            scope=self.scope,
            dim=self.dim,
            poolings=self.poolings,
            all_layers=self.all_layers,
            pinned=pinned,
            assignments=_assign_stores(used, self.assignments) if self.assignments else None,
            seed=seed,
            progress=progress,
        )

    @property
    def _pinned_sites(self) -> Pinned | None:
        if isinstance(self.select, str):
            return None if self.select in SELECTIONS else Site.parse(self.select)
        return {target: Site.parse(site) for target, site in self.select.items()}

    def _select_states(self, states: Sequence[Activations]) -> list[Activations]:
        """The states that are read: those of the named encoders, or all that have candidates."""
        if self.encoders:
            names = [store.provenance.encoder for store in states]
            wanted = {_find_recorded(name, names): name for name in self.encoders}
            named = [store for store in states if store.provenance.encoder in wanted]
            lacking = {name for recorded, name in wanted.items() if recorded not in names}
            if lacking:
                raise ConfigError(f"no states of the encoders {sorted(lacking)} are given")
            return named
        return [s for s in states if any(site.pooling in POOLINGS for site in s.sites)]


def _selection_method(select: str | Mapping[str, str]) -> Method:
    return "grid" if select == "grid" else "fisher"


def _find_recorded(name: str, names: Sequence[str]) -> str:
    """The name that an encoder's states have, given that name or the path of its folder."""
    return name if name in names else recorded_name(name)


def _assign_stores(
    stores: Sequence[Activations], assignments: Mapping[str, str]
) -> dict[str, Activations]:
    names = [store.provenance.encoder for store in stores]
    assignments = {target: _find_recorded(name, names) for target, name in assignments.items()}
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


PREFILL = FamilyEntry(PrefillConfig, FeatureExtractor)


Combination = Literal["concatenated", "averaged"]
Place = tuple[Activations, Site]
PerColumn = Float32[NDArray[np.float32], " hidden"]


def _read_places(saved: list[dict[str, Any]]) -> tuple[SingleSite, ...]:
    return tuple(SingleSite.from_dict(place) for place in saved)


SavedPlaces = Saved(
    "sites",
    form=Annotated[list[dict[str, Any]], AfterValidator(_read_places)],
    write=lambda places: [place.to_dict() for place in places],
)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Joint(Family):
    """Several sites, reduced together. Made by `JointConfig.fit`.

    Attributes:
        places: Which states are read, in the order of their dimensions.
        mean: The train rows' mean of every dimension, one site after another.
        scale: Their standard deviation; 1 for dimensions that are constant.
        components: The weight of each dimension in each column.
    """

    kind: ClassVar[str] = "joint"

    axes: ClassVar[Mapping[str, str]] = {"dim": "dim"}
    places: Annotated[tuple[SingleSite, ...], SavedPlaces]
    mean: PerColumn
    scale: Annotated[PerColumn, Field(gt=0)]
    components: Float32[NDArray[np.float32], "dim hidden"]

    def verify(self) -> None:
        """Check that there is a dimension for each of every site."""
        total = sum(place.source.provenance.hidden_size for place in self.places)
        if not self.places or total != len(self.mean):
            raise ConfigError(f"its sites have {total} dimensions; its scaler has {len(self.mean)}")

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.components)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kinds of states that it reads, each once."""
        return tuple(dict.fromkeys(place.source for place in self.places))

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The sites of one encoder that it reads, sorted."""
        return tuple(sorted({s for place in self.places for s in place.sites_of(provenance)}))

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries."""
        result = np.zeros((len(reading), self.width), dtype=np.float32)
        start = 0
        for place in self.places:
            mine = slice(start, start + place.source.provenance.hidden_size)
            components = self.components[:, mine].T
            for rows, states in place.read(reading):
                result[rows] += (states - self.mean[mine]) / self.scale[mine] @ components
            start = mine.stop
        return result


@final
@dataclass(frozen=True, kw_only=True)
class JointConfig(FamilyConfig):
    """Options of several sites in one block.

    Attributes:
        encoders: Which encoders are read; every one whose states are given, if none is named.
        sites: The sites of each encoder, such as `{minilm: [mean.3, mean.4]}`; the others' are all
            candidates of layer selection with one of the poolings.
        poolings: The poolings of those candidates.
        combine: `concatenated` has every dimension of every site side by side; `averaged` takes the
            mean over the sites of each standardised dimension.
        dim: Principal components to keep.
    """

    encoders: tuple[str, ...] = ()
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    poolings: tuple[Pooling, ...] = ("mean",)
    combine: Combination = "concatenated"
    dim: int = 200

    def __post_init__(self) -> None:
        if not set(self.sites) <= set(self.encoders):
            raise ConfigError(
                f"sites are named for the encoders {sorted(self.sites)}; name sites only for "
                f"encoders of the features: {list(self.encoders)}"
            )
        empty = [name for name, sites in self.sites.items() if not sites]
        if empty:
            raise ConfigError(
                f"no site is named for {empty}; name at least one, or leave these encoders out"
            )
        _ = self.needs  # a site that is none is refused at once

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states of the encoders that are named."""
        return tuple(Need(name, self._sites_of(name)) for name in self.encoders)

    def _sites_of(self, encoder: str) -> tuple[Site, ...] | None:
        return tuple(map(Site.parse, self.sites[encoder])) if encoder in self.sites else None

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Joint:
        """Learn means, deviations and components from the train rows' states, not their labels.

        Args:
            train: The train rows.
            states: Their states; each store gives the sites of its encoder.
            seed: Not used; the fit has no random part.
            progress: Not used.

        Raises:
            ConfigError: There is no site, or sites to be averaged differ in width.
        """
        del seed, progress
        read = tuple(self._list_places(states))
        widths = [store.provenance.hidden_size for store, _ in read]
        if not read or (self.combine == "averaged" and len(set(widths)) > 1):
            raise ConfigError(
                f"the sites to be {self.combine} are {widths} wide; give at least one site, "
                "and average only sites of the same width"
            )
        moments = Moments.total(_read_moments(read, train.prompt_keys), hidden=sum(widths))
        places = tuple(SingleSite(EncoderStates.of(store), site) for store, site in read)
        return Joint(places, *_fit_reduction(moments, self.combine, len(read), self.dim))

    def _list_places(self, states: Sequence[Activations]) -> Iterator[Place]:
        wanted = [(name, self._sites_of(name)) for name in self.encoders]
        named = [
            (store_of(states, name, sites[0] if sites else None), sites) for name, sites in wanted
        ]
        layered = [s for s in states if any(site.pooling in POOLINGS for site in s.sites)]
        for store, sites in named or [(store, None) for store in layered]:
            sites_read = candidate_sites(store, poolings=self.poolings) if sites is None else sites
            yield from ((store, site) for site in sites_read)


def _read_moments(read: Sequence[Place], keys: Sequence[str]) -> Iterator[Moments]:
    """The moments of the sites side by side, a chunk of rows at a time."""
    at_once = max(1, CHUNK_BYTES // (4 * sum(s.provenance.hidden_size for s, _ in read)))
    for start in range(0, len(keys), at_once):
        some = keys[start : start + at_once]
        sites = [
            np.concatenate([rows for _, rows in SiteStates(store, site, some)])
            for store, site in read
        ]
        yield Moments.of(np.concatenate(sites, axis=1))


def _fit_reduction(
    moments: Moments, combine: Combination, count: int, dim: int
) -> tuple[PerColumn, PerColumn, Float32[NDArray[np.float32], "dim hidden"]]:
    """Mean, scale and components of some sites side by side."""
    if combine == "concatenated":
        reducer = Reducer.fit(moments, dim)
        return reducer.mean, reducer.scale, reducer.components
    scale, varies = standard_scale(moments)
    scatter = moments.scatter / np.outer(scale, scale) * np.outer(varies, varies)
    hidden = len(scale) // count
    together = scatter.reshape(count, hidden, count, hidden).sum(axis=(0, 2)) / count**2
    averaged = Moments(moments.count, np.zeros(hidden), together)
    found = Reducer.fit(averaged, dim, standardise=False).components / count
    components = np.tile(found, (1, count)).astype(np.float32)
    return moments.mean.astype(np.float32), scale.astype(np.float32), components


JOINT = FamilyEntry(JointConfig, Joint)
