"""Fields of nested records, by dotted paths such as `scores.Correctness`.

In a path `*` is any field, the first that is filled; a number is a place in a list; `<path>` is the
field whose name is found at that path.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

MOST_DEPTH: Final = 8
"""How deep objects are flattened; what is deeper stays an object."""
_STEP = re.compile(r"<[^>]+>|[^.]+")


def flatten(record: Mapping[str, object]) -> dict[str, object]:
    """The fields of a record by their dotted paths; lists, and empty objects, stay values."""
    flat: dict[str, object] = {}
    for name, value in record.items():
        _add(value, name, flat, MOST_DEPTH)
    return flat


def _add(value: object, name: str, flat: dict[str, object], depth: int) -> None:
    if not isinstance(value, Mapping) or not value or not depth:
        flat[name] = value
        return
    for key, inner in value.items():
        _add(inner, f"{name}.{key}", flat, depth - 1)


def value_at(record: Mapping[str, Any], *paths: str) -> Any:
    """The value at the first of these paths that is filled; None where none is."""
    for path in paths:
        for value in _values(record, _STEP.findall(path), record):
            if value is not None and value != "":
                return value
    return None


def _values(value: Any, steps: Sequence[str], record: Mapping[str, Any]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, *rest = steps
    if step[0] == "<":
        step = str(value_at(record, step[1:-1]))
    if isinstance(value, Mapping):
        found = list(value.values()) if step == "*" else [value[step]] if step in value else []
    elif isinstance(value, list):
        found = value if step == "*" else value[int(step) :][:1] if step.isdecimal() else []
    else:
        found = []
    for inner in found:
        yield from _values(inner, rest, record)
