"""Registries of the kinds of a part, by name; a kind's module is imported when it is looked up."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, final

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.lazy_imports import load

Entry = TypeVar("Entry")


@final
class Kinds(Generic[Entry]):
    """The registry of one sort of part, such as predictors.

    Args:
        noun: The noun for one of them in error messages; a plural for some, such as features.
        package: The package that contains their modules.
        homes: The location of each kind: a module of the package and a name in it, `module:NAME`.
    """

    def __init__(self, noun: str, package: str, homes: Mapping[str, str]) -> None:
        self._noun, self._package, self._homes = noun, package, homes
        self._plural = noun.endswith("s")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all kinds, in order."""
        return tuple(self._homes)

    def find(self, kind: str) -> Entry:
        """The entry of a kind.

        Raises:
            ConfigError: There is no kind of that name.
        """
        if kind not in self._homes:
            lacking = f"there is no {self._noun} {kind!r}"
            if self._plural:
                lacking = f"there are no {self._noun} of the kind {kind!r}"
            raise ConfigError(f"{lacking}; known are {list(self.names)}")
        entry: Entry = load(self._package, self._homes[kind])
        return entry

    def kind_of(self, config: object) -> str:
        """The kind that some options belong to; each entry has their class as `config`.

        Raises:
            ConfigError: They belong to no known kind.
        """
        for kind in self.names:
            if getattr(self.find(kind), "config", None) is type(config):
                return kind
        known = list(self.names)
        raise ConfigError(f"{type(config).__name__} belongs to no kind; known are {known}")

    def of_saved(self, config: Mapping[str, Any]) -> Entry:
        """The entry for the kind of a saved part.

        Raises:
            CorruptError: The kind is unknown.
        """
        kind = config.get("kind")
        if not isinstance(kind, str) or kind not in self._homes:
            verb = "are" if self._plural else "is"
            raise CorruptError(
                f"the {self._noun} {verb} of the kind {kind!r}; known are {list(self.names)}; "
                "this may need a newer version of prefill-router"
            )
        return self.find(kind)
