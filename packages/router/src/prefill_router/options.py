"""Limits on the options of a method, declared in their types and checked when they are set.

A dataclass annotates a field with one of these types and calls `check_options` in `__post_init__`.
A `Literal` is checked without an annotation, and an option that is None isn't checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import inf
from typing import Annotated, Any, Literal, TypeVar, final, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from prefill_router.errors import ConfigError

_Config = TypeVar("_Config")


@final
@dataclass(frozen=True)
class Limit:
    """A condition that an option must meet.

    Attributes:
        wanted: The condition in words, after "it must be".
        holds: Whether a value meets it.
    """

    wanted: str
    holds: Callable[[Any], bool]

    @property
    def each(self) -> "Limit":
        """The same condition for every number of a tuple."""
        return Limit(f"{self.wanted} each", lambda values: all(map(self.holds, values)))


AT_LEAST_ONE = Limit("at least 1", lambda value: value >= 1)
BELOW_ONE = Limit("in [0, 1)", lambda value: 0 <= value < 1)
POSITIVE = Limit("positive and finite", lambda value: 0 < value < inf)
NOT_NEGATIVE = Limit("0 or more, and finite", lambda value: 0 <= value < inf)
Count = Annotated[int, AT_LEAST_ONE]
Several = Annotated[int, Limit("at least 2", lambda value: value >= 2)]
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Dropout = Annotated[float, BELOW_ONE]
Validation = Annotated[float, Limit("in (0, 1)", lambda value: 0 < value < 1)]
Fraction = Annotated[float, Limit("in (0, 1]", lambda value: 0 < value <= 1)]
Widths = Annotated[
    tuple[int, ...],
    Limit("one width or more, at least 1 each", lambda widths: min(widths, default=0) >= 1),
]


def check_options(config: Any) -> None:
    """Check every option of a dataclass against the limits in its type.

    Raises:
        ConfigError: An option is outside its limits.
    """
    kind: type = type(config)
    for name, limits in _limits(kind).items():
        value = getattr(config, name)
        for limit in limits:
            if value is not None and not limit.holds(value):
                raise ConfigError(f"{name} is {value!r}; it must be {limit.wanted}")


@cache
def _limits(kind: type) -> dict[str, tuple[Limit, ...]]:
    hints = get_type_hints(kind, include_extras=True)
    found = {name: _limits_of(hint) for name, hint in hints.items()}
    return {name: limits for name, limits in found.items() if limits}


def _limits_of(hint: Any) -> tuple[Limit, ...]:
    if get_origin(hint) is Literal:
        known = list(get_args(hint))
        return (Limit(f"one of {known}", known.__contains__),)
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        return tuple(limit for limit in parts[1:] if isinstance(limit, Limit))
    return tuple(limit for part in parts for limit in _limits_of(part))


def build(config: type[_Config], options: Mapping[str, Any], *, what: str) -> _Config:
    """The options of a dataclass from plain values.

    Raises:
        ConfigError: An option is unknown, or of the wrong type.
    """
    known = [one.name for one in fields(config) if one.init]  # type: ignore[arg-type]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ConfigError(f"{what} has no option {unknown}; it has {known}")
    try:
        return TypeAdapter(config).validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{what}: {place}: {first['msg']}, got {first['input']!r}") from None
