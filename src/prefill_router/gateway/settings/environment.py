"""Settings in the environment: which variable sets what.

A variable's name is `PREFILL_ROUTER_` and the path of a setting, its parts joined by two
underscores. What holds several values is written in JSON: `PREFILL_ROUTER_BUDGETS='[{...}]'`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final, get_args, get_origin

from pydantic import BaseModel

PREFIX = "PREFILL_ROUTER_"
_JOINT = "__"
Place = tuple[int | str, ...]
"""Where a setting stands: the names that lead to it, and the numbers of places in lists."""


@final
@dataclass(frozen=True)
class Variable:
    """A variable that begins as settings do.

    Attributes:
        name: Its name.
        path: Of what it sets.
        value: What it sets that to; plain text, or what its JSON says.
        wrong: Why it can't be read; None where it can.
    """

    name: str
    path: tuple[str, ...]
    value: Any = None
    wrong: str | None = None


def variables_of(environment: Mapping[str, str], model: type[BaseModel]) -> tuple[Variable, ...]:
    """The variables that begin as settings do, those of whole parts before those within them.

    Args:
        environment: All variables.
        model: The settings.
    """
    found = (
        _variable(name, environment[name], model)
        for name in sorted(environment)
        if name.upper().startswith(PREFIX)
    )
    return tuple(sorted(found, key=lambda variable: len(variable.path)))


def merged(value: Mapping[str, Any], variables: Iterable[Variable]) -> dict[str, Any]:
    """Settings, with those of variables over them.

    Args:
        value: The settings of a file, say; it stays as it is.
        variables: Those over them; one that can't be read sets nothing.
    """
    whole = dict(value)
    for variable in variables:
        if variable.wrong is None:
            whole = over(whole, _nested(variable.path, variable.value))
    return whole


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = path
    return {first: _nested(tuple(rest), value) if rest else value}


def over(value: Mapping[Any, Any], further: Mapping[Any, Any]) -> dict[Any, Any]:
    """Settings with others over them: parts are joined, anything else is replaced."""
    joined = dict(value)
    for name, new in further.items():
        old = joined.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            joined[name] = over(old, new)
        else:
            joined[name] = new
    return joined


def model_at(path: Place, model: type[BaseModel]) -> type[BaseModel] | None:
    """The part of the settings at a path; None where a single one or none stands there."""
    found: type[BaseModel] | None = model
    for name in path:
        if isinstance(name, str):
            found = next(iter(_models(_kind(found, name))), None)
    return found


def _variable(name: str, text: str, model: type[BaseModel]) -> Variable:
    path = tuple(name[len(PREFIX) :].lower().split(_JOINT))
    parent = model_at(path[:-1], model)
    kind = _kind(parent, path[-1])
    if not _holds_several(kind):
        return Variable(name, path, text)
    try:
        return Variable(name, path, json.loads(text))
    except (ValueError, RecursionError):
        shape = "{...}" if _models(kind) and get_origin(kind) is None else "[...] or {...}"
        return Variable(name, path, wrong=f"isn't JSON; it holds several values: {shape}")


def _kind(model: type[BaseModel] | None, name: str) -> Any:
    """The type of a field; None where there is none."""
    field = None if model is None else model.model_fields.get(name)
    return None if field is None else field.annotation


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each


def _holds_several(kind: Any) -> bool:
    return get_origin(kind) in (tuple, dict) or any(True for _ in _models(kind))
