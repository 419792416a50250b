"""The families of features by kind; each is imported when it is first asked for.

The module of a kind has a constant `ENTRY`, a `FamilyEntry`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

from numpy.typing import NDArray

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features.base import Family, FamilyConfig

_HOME = {
    "prefill": "prefill",
    "embedding": "embedding",
    "neighbours": "neighbours",
    "complexity": "complexity",
    "signals": "signals",
    "text_network": "text_network",
}
KINDS: tuple[str, ...] = tuple(_HOME)


@final
@dataclass(frozen=True)
class FamilyEntry:
    """One kind.

    Attributes:
        config: Its options, and how it is fitted.
        family: What is fitted.
    """

    config: type[FamilyConfig]
    family: type[Family]


def find(kind: str) -> FamilyEntry:
    """The entry of a kind.

    Raises:
        ConfigError: There is none of that name.
    """
    if kind not in _HOME:
        raise ConfigError(f"there are no features of the kind {kind!r}; known are {list(KINDS)}")
    entry = import_module(f"prefill_router.features.{_HOME[kind]}").ENTRY
    if not isinstance(entry, FamilyEntry):
        raise TypeError(f"the module of {kind} has no entry")
    return entry


def kind_of(config: FamilyConfig) -> str:
    """The kind of some options.

    Raises:
        ConfigError: They are of no kind known.
    """
    for kind in KINDS:
        if find(kind).config is type(config):
            return kind
    raise ConfigError(f"{type(config).__name__} belongs to no kind; known are {list(KINDS)}")


def load_family(config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Family:
    """The family of `Family.to_dict` and `Family.tensors`.

    Raises:
        CorruptError: The kind is unknown, or the rest contradicts itself.
    """
    kind = config.get("kind")
    if not isinstance(kind, str) or kind not in _HOME:
        raise CorruptError(
            f"the features are of the kind {kind!r}; known are {list(KINDS)}; the router may need "
            "a newer version of prefill-router"
        )
    return find(kind).family.from_dict(config, tensors)
