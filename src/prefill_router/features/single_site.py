"""What families that read one site of one encoder have in common."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from pydantic import ValidationError

from prefill_router.activations import Activations, Provenance, Site
from prefill_router.encoders import recorded_name
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features.base import EncoderStates, PromptStates, find_store
from prefill_router.features.extractor import SavedStates, StrictModel, states_like
from prefill_router.geometry import Moments, SiteStates

States = Float32[NDArray[np.float32], "query hidden"]
Vectors = Float64[NDArray[np.float64], "query column"]
_Saved = TypeVar("_Saved", bound=StrictModel)


@final
@dataclass(frozen=True)
class SingleSite:
    """Which states are read.

    Attributes:
        source: What made them, and what they are rounded to.
        site: At which layer, with which pooling.
    """

    source: EncoderStates
    site: Site

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The site, of its own encoder."""
        return (self.site,) if provenance == self.source.provenance else ()

    def read(self, reading: PromptStates) -> Iterator[tuple[slice, States]]:
        """Rows (a slice into the queries) and their states.

        Raises:
            ProvenanceError: The states are of another encoder, site or type.
            StoreError: Some aren't held.
        """
        store = find_store(reading.states, self.source.provenance)
        return states_like(self.source, self.site, store, reading.keys)

    def moments(
        self, store: Activations, keys: Sequence[str], vectors: Callable[[States], Vectors]
    ) -> Moments:
        """The moments of what `vectors` makes of the states of some prompts."""
        parts = (Moments.of(vectors(states)) for _, states in SiteStates(store, self.site, keys))
        return Moments.total(parts, hidden=self.source.provenance.hidden_size)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"states": SavedStates.of(self.source), "site": self.site.name}


class SavedSite(StrictModel):
    """A family of one site, as it is saved."""

    kind: str
    states: SavedStates
    site: str

    def where(self) -> SingleSite:
        """Which states are read.

        Raises:
            ConfigError: The encoder has no such site.
        """
        source, site = self.states.source(), Site.parse(self.site)
        if site.layer > source.provenance.num_layers:
            raise ConfigError(
                f"{site.name} is read; the encoder has {source.provenance.num_layers} layers"
            )
        return SingleSite(source, site)


def validated(kind: str, form: type[_Saved], config: Mapping[str, Any]) -> _Saved:
    """The plain values of a family, checked.

    Raises:
        CorruptError: Something is missing, added, or of another type.
    """
    try:
        saved = form.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"the router's {kind} features: {place}: {first['msg']}") from None
    if config["kind"] != kind:
        raise CorruptError(f"features of the kind {config['kind']!r} were taken for {kind!r}")
    return saved


def take_arrays(
    kind: str, tensors: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> list[NDArray[Any]]:
    """The arrays of a family in the order of `shapes`, checked.

    Raises:
        CorruptError: One is missing, unknown, not float32, not finite or of another shape; or a
            `scale` isn't positive.
    """
    if set(tensors) != set(shapes):
        raise CorruptError(
            f"the router's {kind} features have the arrays {list(shapes)}; got {sorted(tensors)}"
        )
    for name, shape in shapes.items():
        array = tensors[name]
        if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise CorruptError(
                f"{name} of the router's {kind} features must be finite float32 {shape}; got "
                f"{array.dtype} {array.shape}; copy or make the router again"
            )
        if name == "scale" and (array <= 0).any():
            raise CorruptError(f"scale of the router's {kind} features must be positive")
    return [tensors[name] for name in shapes]


def store_of(states: Sequence[Activations], encoder: str, site: Site | None) -> Activations:
    """The states that an encoder of this name made, at best such as hold the site.

    Raises:
        ConfigError: None are given.
    """
    name = recorded_name(encoder)
    named = [store for store in states if store.provenance.encoder == name]
    if not named:
        given = sorted({store.provenance.encoder for store in states}) or "none"
        raise ConfigError(
            f"the features need states of the encoder {name!r}; given are those of {given}: make "
            f"them with prefill-router encode --encoder {encoder}"
        )
    return next((store for store in named if site in store.sites), named[0])
