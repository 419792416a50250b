"""The ranges of a command's numbers, which stand beside their types in its annotations.

Such a number is annotated as `Annotated[int, AT_LEAST_ONE, typer.Option()]`, with a constraint of
`prefill_router.options` or a `Field` of pydantic. Typer itself has no bounds that are excluded.
"""

import math
from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, get_args, get_origin

from prefill_router.cli.commands import UsageError
from prefill_router.options import Bounds, find_outside, read_bounds


def describe_range(bounds: Bounds) -> str:
    """The numbers that an option of a command takes, after "it must be"."""
    if {"ge", "le"} <= bounds.keys():
        return f"from {bounds['ge']:.15g} to {bounds['le']:.15g}"
    return " and ".join(
        words.format(bounds[name]) for name, words in _RANGE_WORDS.items() if name in bounds
    )


_RANGE_WORDS = {
    **{"gt": "above {:.15g}", "ge": "{:.15g} or more"},
    **{"lt": "below {:.15g}", "le": "at most {:.15g}"},
}


def find_ranges(callback: Callable[..., Any]) -> dict[str, Bounds]:
    """The bounds of a command's numbers, by parameter; they stand in its annotations.

    Where a list of numbers is taken, they hold for each.
    """
    ranges = {
        name: read_bounds(get_args(parameter.annotation)[1:])
        for name, parameter in signature(callback).parameters.items()
        if get_origin(parameter.annotation) is Annotated
    }
    return {name: bounds for name, bounds in ranges.items() if bounds}


def check_numbers(command: Any, ctx: Any) -> None:
    """Check the numbers of a command line.

    Raises:
        UsageError: A number is out of its option's range, or isn't finite.
    """
    options = {param.name: param.opts[0] for param in command.params}
    for name, bounds in find_ranges(command.callback).items():
        value = ctx.params.get(name)
        for number in value if isinstance(value, list | tuple) else [value]:
            if number is not None and (not math.isfinite(number) or find_outside(number, bounds)):
                text = number if isinstance(number, int) else f"{number:g}"
                raise UsageError(f"{options[name]} is {text}; it must be {describe_range(bounds)}")
