"""Fields of nested records, by dotted paths such as `scores.Correctness`.

In a path `*` is any field, the first that is filled; a number is a place in a list; `<path>` is the
field whose name is found at that path.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

MOST_DEPTH: Final = 8
"""How deep objects are flattened; what is deeper stays an object."""
_STEP = re.compile(r"<[^>]+>|[^.]+")


def flatten(record: Mapping[str, object]) -> dict[str, object]:
    """The fields of a record by their dotted paths; empty objects, and most lists, stay values.

    A list of objects becomes a list for each of their fields, unless it is one of messages.
    """
    flat: dict[str, object] = {}
    for name, value in record.items():
        _add_value(value, name, flat, MOST_DEPTH)
    return flat


def are_rows(fields: Collection[str]) -> bool:
    """Whether objects with these fields are rows, and not messages."""
    return not {"role", "content"} & set(fields)


def _add_value(value: object, name: str, flat: dict[str, object], depth: int) -> None:
    if isinstance(value, list) and value and depth and all(map(_is_row, value)):
        rows = [flatten(row) for row in value]
        for key in dict.fromkeys(key for row in rows for key in row):
            flat[f"{name}.{key}"] = [row.get(key) for row in rows]
        return
    if not isinstance(value, Mapping) or not value or not depth:
        flat[name] = value
        return
    for key, inner in value.items():
        _add_value(inner, f"{name}.{key}", flat, depth - 1)


def _is_row(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and are_rows(value)


def value_at(record: Mapping[str, Any], *paths: str) -> Any:
    """The value at the first of these paths that is filled; None where none is."""
    for path in paths:
        for value in _find_values(record, _STEP.findall(path), record):
            if value is not None and value != "":
                return value
    return None


def _find_values(value: Any, steps: Sequence[str], record: Mapping[str, Any]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, *rest = steps
    if step[0] == "<":
        step = str(value_at(record, step[1:-1]))
    for inner in _inner_values(value, step):
        yield from _find_values(inner, rest, record)


def _inner_values(value: Any, step: str) -> Sequence[Any]:
    """The values that one step of a path leads to."""
    if isinstance(value, list):
        return value if step == "*" else value[int(step) :][:1] if step.isdecimal() else ()
    if not isinstance(value, Mapping):
        return ()
    return list(value.values()) if step == "*" else [value[step]] if step in value else ()
