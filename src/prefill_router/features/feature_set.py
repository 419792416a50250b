"""All features of a predictor: families of features, concatenated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from prefill_router import mapped_matrix
from prefill_router.activations import Provenance, Site
from prefill_router.errors import ConfigError, CorruptError, ProvenanceError
from prefill_router.features.base import Columns, EncoderStates, Family, PromptStates, load_family
from prefill_router.serialization import StrictModel, Tensors, under, validated
from prefill_router.short_repr import short_repr


class _SavedFeatures(StrictModel):
    families: list[dict[str, Any]]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Families of features, concatenated.

    Attributes:
        families: At least one, in the order of their columns.
    """

    families: tuple[Family, ...]

    def __post_init__(self) -> None:
        if not self.families:
            raise ConfigError("there are no features; name at least one family, such as prefill")

    @property
    def width(self) -> int:
        """The number of features of a query."""
        return sum(family.width for family in self.families)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kinds of states that are read, each once; none for features of the text alone."""
        return tuple(dict.fromkeys(s for family in self.families for s in family.sources))

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """The provenances of the encoders that a request needs, in the order of `sources`."""
        return tuple(source.provenance for source in self.sources)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """The sites of one encoder that must be read, sorted."""
        return tuple(sorted({s for family in self.families for s in family.sites_of(provenance)}))

    def source_of(self, provenance: Provenance) -> EncoderStates:
        """The kind of states of one encoder, with the type that they must be rounded to.

        Raises:
            ProvenanceError: No family reads this encoder.
        """
        for source in self.sources:
            if source.provenance == provenance:
                return source
        raise ProvenanceError(
            f"no feature is read from {provenance.encoder!r}; the encoders are "
            f"{[p.encoder for p in self.provenances]}"
        )

    def read(self, reading: PromptStates) -> Columns:
        """The features of these queries, one row each.

        Raises:
            ProvenanceError: An encoder's states are missing, or were made in another way.
            StoreError: States of some prompts are missing.
        """
        return mapped_matrix.beside([family.read(reading) for family in self.families])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the rest of the features is in `tensors`."""
        return {"families": [family.to_dict() for family in self.families]}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays, by names such as `0.block0.mean`."""
        return {
            f"{number}.{name}": array
            for number, family in enumerate(self.families)
            for name, array in family.tensors().items()
        }

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "FeatureSet":
        """The features that `to_dict` and `tensors` describe.

        Raises:
            CorruptError: The values are incomplete or contradict each other.
        """
        saved = validated(_SavedFeatures, config, what="the router's features").families
        families = tuple(load_family(one, under(tensors, f"{i}.")) for i, one in enumerate(saved))
        known = {f"{i}." for i in range(len(families))}
        surplus = sorted(name for name in tensors if name.partition(".")[0] + "." not in known)
        if surplus:
            raise CorruptError(f"the router's features have the unknown arrays {surplus}")
        return cls(families)
