"""The feature families by kind; each is imported when it is first looked up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.features.base import Family, FamilyConfig
from prefill_router.serialization import Kinds, Tensors


@final
@dataclass(frozen=True)
class FamilyEntry:
    """One kind of feature family.

    Attributes:
        config: The class of its options, which fit it.
        family: The class of the fitted family.
    """

    config: type[FamilyConfig]
    family: type[Family]


FAMILIES = Kinds[FamilyEntry](
    "features",
    "prefill_router.features",
    {
        "prefill": "prefill:ENTRY",
        "joint": "joint:ENTRY",
        "embedding": "embedding:ENTRY",
        "neighbours": "neighbours:ENTRY",
        "complexity": "complexity:ENTRY",
        "signals": "signals:ENTRY",
        "zero_shot": "zero_shot:ENTRY",
        "text_network": "text_network:ENTRY",
    },
)


def load_family(config: Mapping[str, Any], tensors: Tensors) -> Family:
    """The family that `Family.to_dict` and `Family.tensors` describe.

    Raises:
        CorruptError: The kind is unknown, or the values contradict each other.
    """
    return FAMILIES.of_saved(config).family.from_dict(config, tensors)
