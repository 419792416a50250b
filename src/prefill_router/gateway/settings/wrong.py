"""What is wrong with settings: where each is set, what was got, and what would do."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from pydantic import BaseModel, ValidationError

from prefill_router.gateway.settings.environment import Place, Variable, model_at
from prefill_router.yaml_files import line_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHORT = 32
_QUOTED = (
    *("int_parsing", "float_parsing", "bool_parsing", "literal_error"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
)
"""Texts in place of numbers and words are quoted; others may be addresses with passwords."""


@final
@dataclass(frozen=True)
class Sources:
    """Where settings came from, the last that sets one counts.

    Attributes:
        path: Their file; None for none.
        value: What stands in it.
        variables: Those of the environment.
        options: Those that were given besides.
    """

    path: Path | None
    value: Mapping[str, Any]
    variables: tuple[Variable, ...]
    options: Mapping[str, Any]


def wrong_settings(error: ValidationError, model: type[BaseModel], sources: Sources) -> list[str]:
    """What is wrong with each of the settings that can't be used, and where it is set.

    Args:
        error: What was found.
        model: The settings.
        sources: Where they came from.
    """
    told = []
    for found in error.errors():
        place = found["loc"]
        sought = place[:-1] if found["type"] == "missing" else place
        is_whole = found["type"] == "value_error" and model_at(place, model) is not None
        where = _where(sources, sought, whole=is_whole)
        name = ".".join(map(str, place))
        of_itself = any(v.name == where and v.path == place for v in sources.variables)
        words = _words(found, model)
        told.append(f"{where}: {words}" if of_itself else f"{where}: {name}: {words}")
    return told


def nearest(name: str, known: Sequence[str]) -> str:
    """Which of the known names was meant, as the end of a sentence; empty where none is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _words(found: "ErrorDetails", model: type[BaseModel]) -> str:
    if found["type"] == "extra_forbidden":
        part = model_at(found["loc"][:-1], model)
        names = [] if part is None else list(part.model_fields)
        name = str(found["loc"][-1])
        return f"no such setting; there are {', '.join(names)}{nearest(name, names)}"
    words, got = found["msg"].removeprefix("Value error, "), found["input"]
    is_word = isinstance(got, str) and found["type"] in _QUOTED and len(got) <= _SHORT
    return f"{words}, not {got!r}" if is_word or isinstance(got, int | float) else words


def _where(sources: Sources, place: Place, *, whole: bool) -> str:
    """Who set what stands at a place: the last one, or all who had a part in it."""
    setters = ["the options"] if _stands(sources.options, place) else []
    setters += [v.name for v in reversed(sources.variables) if _sets(v, place)]
    if sources.path is not None and _stands(sources.value, place):
        setters.append(f"{sources.path}:{line_of(sources.path, place)}")
    return " and ".join(setters if whole else setters[:1]) or str(sources.path or "the settings")


def _sets(variable: Variable, place: Place) -> bool:
    path = variable.path
    if path[: len(place)] == place:
        return True
    within = place[: len(path)] == path
    return within and _stands(variable.value, place[len(path) :])


def _stands(value: Any, place: Place) -> bool:
    """Whether something stands at a place in plain values."""
    for name in place:
        named = isinstance(value, Mapping) and name in value
        numbered = isinstance(value, list | tuple) and isinstance(name, int) and name < len(value)
        if not (named or numbered):
            return False
        value = value[name]
    return True
