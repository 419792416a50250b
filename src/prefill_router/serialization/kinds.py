"""The kinds of one sort of part, told by name; a module is imported when its kind is asked for."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, final

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.lazy_imports import load

Entry = TypeVar("Entry")


@final
class Kinds(Generic[Entry]):
    """The kinds of one sort, such as all predictors.

    Args:
        noun: What errors call one of them; of what is many in itself, such as features, its plural.
        package: Whose modules they are in.
        homes: Where each kind is found: a module of the package and a name in it, `module:NAME`.
    """

    def __init__(self, noun: str, package: str, homes: Mapping[str, str]) -> None:
        self._noun, self._package, self._homes = noun, package, homes
        self._plural = noun.endswith("s")

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(self._homes)

    def find(self, kind: str) -> Entry:
        """What a kind is.

        Raises:
            ConfigError: There is none of that name.
        """
        if kind not in self._homes:
            lacking = f"there is no {self._noun} {kind!r}"
            if self._plural:
                lacking = f"there are no {self._noun} of the kind {kind!r}"
            raise ConfigError(f"{lacking}; known are {list(self.names)}")
        entry: Entry = load(self._package, self._homes[kind])
        return entry

    def kind_of(self, config: object) -> str:
        """The kind of some options, where each entry has the class of its own as `config`.

        Raises:
            ConfigError: They are of no kind known.
        """
        for kind in self.names:
            if getattr(self.find(kind), "config", None) is type(config):
                return kind
        known = list(self.names)
        raise ConfigError(f"{type(config).__name__} belongs to no kind; known are {known}")

    def of_saved(self, config: Mapping[str, Any]) -> Entry:
        """What the kind of a saved part is.

        Raises:
            CorruptError: It is unknown.
        """
        kind = config.get("kind")
        if not isinstance(kind, str) or kind not in self._homes:
            verb = "are" if self._plural else "is"
            raise CorruptError(
                f"the {self._noun} {verb} of the kind {kind!r}; known are {list(self.names)}; "
                "this may need a newer version of prefill-router"
            )
        return self.find(kind)
