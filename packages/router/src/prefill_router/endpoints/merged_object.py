"""A JSON object that arrives in pieces, such as the chunks of a streamed answer."""

from collections.abc import Mapping
from typing import Any, final

_GROWING = frozenset(("arguments", "refusal", "summary", "text", "thinking"))
"""Fields whose pieces are concatenated; in other fields the last value counts."""


@final
class MergedObject:
    """An object that arrives in pieces.

    Objects in a list that have an `index`, such as tool calls, are merged by it; other lists are
    extended.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._objects: dict[str, MergedObject] = {}
        self._indexed: dict[str, dict[int, MergedObject]] = {}
        self._lists: dict[str, list[Any]] = {}
        self._last: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Add one piece of a field; null is ignored."""
        if value is None:
            return
        if isinstance(value, str | int):
            if name in _GROWING and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            else:
                self._last[name] = value
        elif isinstance(value, list):
            for place, item in enumerate(value):
                self._add_item(name, item, place)
        elif isinstance(value, Mapping):
            self._objects.setdefault(name, MergedObject()).add_all(value)
        else:
            self._last[name] = value

    def add_all(self, fields: Mapping[str, Any]) -> None:
        """Add one piece of every field."""
        for name, value in fields.items():
            self.add(name, value)

    def append(self, name: str, value: Any) -> None:
        """Append one item to a list, unchanged."""
        self._lists.setdefault(name, []).append(value)

    def plain(self) -> dict[str, Any]:
        """The merged object."""
        return {
            **self._last,
            **{name: "".join(pieces) for name, pieces in self._texts.items()},
            **self._lists,
            **{name: merged.plain() for name, merged in self._objects.items()},
            **{
                name: [merged.plain() for _, merged in sorted(items.items())]
                for name, items in self._indexed.items()
            },
        }

    def _add_item(self, name: str, item: Any, place: int) -> None:
        index = item.get("index") if isinstance(item, Mapping) else None
        if name == "tool_calls" and index is None and isinstance(item, Mapping):
            index = place  # a plain reply has no indices
        if isinstance(index, int):
            items = self._indexed.setdefault(name, {})
            items.setdefault(index, MergedObject()).add_all(item)
        else:
            self.append(name, item)
