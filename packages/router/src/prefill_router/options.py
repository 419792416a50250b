"""Limits on options, declared in their types as constraints of pydantic, which checks them.

A dataclass annotates a field with one of these types and calls `check_options` in `__post_init__`.
An option of a command has a constraint beside its type, `Annotated[int, AT_LEAST_ONE, Option()]`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache, reduce
from itertools import chain
from operator import ge, gt, le, lt, or_
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from prefill_router.errors import ConfigError

_Config = TypeVar("_Config")

AT_LEAST_ONE = Field(ge=1)
AT_LEAST_TWO = Field(ge=2)
NOT_NEGATIVE = Field(ge=0)
POSITIVE = Field(gt=0)
PORT = Field(ge=0, le=65_535)
SHARE = Field(ge=0, le=1)
SHARE_ABOVE_ZERO = Field(gt=0, le=1)
SHARE_BELOW_ONE = Field(ge=0, lt=1)
SHARE_BETWEEN = Field(gt=0, lt=1)
Count = Annotated[int, AT_LEAST_ONE]
Several = Annotated[int, AT_LEAST_TWO]
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Dropout = Annotated[float, SHARE_BELOW_ONE]
Validation = Annotated[float, SHARE_BETWEEN]
Share = Annotated[float, SHARE]
Fraction = Annotated[float, SHARE_ABOVE_ZERO]
Widths = Annotated[tuple[Count, ...], Field(min_length=1, title="width")]

Bounds = Mapping[str, float]
"""The bounds `ge`, `gt`, `le` and `lt` of a number, those that it has."""


def read_bounds(constraints: Iterable[Any]) -> Bounds:
    """The bounds of a number.

    Args:
        constraints: What stands beside its type in `Annotated`.
    """
    plain = chain.from_iterable(
        constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]
        for constraint in constraints
    )
    return {
        name: getattr(constraint, name)
        for constraint in plain
        for name in ("ge", "gt", "le", "lt")
        if hasattr(constraint, name)
    }


def find_outside(numbers: Any, bounds: Bounds) -> Any:
    """Whether a number, or each number of an array, is out of bounds; NaN isn't."""
    outside = (_OUTSIDE[name](numbers, bound) for name, bound in bounds.items())
    return reduce(or_, outside, False)


_OUTSIDE = {"ge": lt, "gt": le, "le": gt, "lt": ge}


def describe_bounds(bounds: Bounds) -> str:
    """The numbers within bounds, after "it must be"."""
    low, high = (bounds.get(a, bounds.get(b)) for a, b in (("ge", "gt"), ("le", "lt")))
    if high is not None:
        return f"in {'(' if 'gt' in bounds else '['}{low}, {high}{')' if 'lt' in bounds else ']'}"
    if low == 0:
        return "positive" if "gt" in bounds else "0 or more"
    return f"at least {low}"


def describe_limits(hint: Any) -> str:
    """The values that a type allows, after "it must be"; empty for a type without limits."""
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return f"one of {list(parts)}"
    if get_origin(hint) is Annotated:
        return _describe_constraints(parts[0], parts[1:])
    words = next(filter(None, map(describe_limits, parts)), "")
    return f"{words} each" if words and get_origin(hint) is tuple else words


def _describe_constraints(kind: Any, constraints: Iterable[Any]) -> str:
    if bounds := read_bounds(constraints):
        words = describe_bounds(bounds)
        if kind is int or bounds.keys() & {"le", "lt"}:
            return words
        return f"{words}{'' if 'gt' in bounds else ','} and finite"
    first = "".join(
        f"one {constraint.title} or more, "
        for constraint in constraints
        if hasattr(constraint, "title")
    )
    return first + describe_limits(kind)


def check_options(config: Any) -> None:
    """Check every option of a dataclass against the limits in its type; all numbers are finite.

    Raises:
        ConfigError: An option is outside its limits.
    """
    kind: type = type(config)
    for name, (validate, words) in _limit_options(kind).items():
        value = getattr(config, name)
        try:
            number = validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"it must be {words}" if first["type"] in _OUT_OF_LIMITS else first["msg"]
            raise ConfigError(f"{name} is {value!r}; {reason}") from None
        if isinstance(value, str | bytes) and not isinstance(number, str | bytes):
            raise ConfigError(f"{name} is {value!r}; it must be a number, {words}")


@cache
def _limit_options(kind: type) -> dict[str, tuple[Callable[[Any], Any], str]]:
    """The options that have limits, each with what checks it and with its limits in words."""
    hints = get_type_hints(kind, include_extras=True)
    limits = {option.name: describe_limits(hints[option.name]) for option in fields(kind)}
    config = ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True)
    return {
        name: (TypeAdapter(hints[name], config=config).validator.validate_python, words)
        for name, words in limits.items()
        if words
    }


_OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short")
_OUT_OF_LIMITS = (*_OUT_OF_BOUNDS, "finite_number", "literal_error")


def build(config: type[_Config], options: Mapping[str, Any], *, what: str) -> _Config:
    """The options of a dataclass from plain values.

    Raises:
        ConfigError: An option is unknown, of the wrong type, or outside its limits.
    """
    kind: type = config
    names = [field.name for field in fields(kind) if field.init]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise ConfigError(f"{what} has no option {unknown}; it has {names}")
    try:
        return TypeAdapter(config).validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if first["type"] in _OUT_OF_BOUNDS:
            words = _limit_options(kind)[name][1]
            raise ConfigError(f"{name} is {options[name]!r}; it must be {words}") from None
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{what}: {place}: {first['msg']}, got {first['input']!r}") from None
