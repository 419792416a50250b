"""How numbers and intervals are printed: percentages, points, dollars per thousand queries."""

import math
from typing import Literal

from prefill_router.evaluation.bootstrap import Estimate

Unit = Literal["share", "points", "usd", "number"]
Better = Literal["higher", "lower", "neither"]


NOTHING = "\u2013"
UNKNOWN = "?"
PER = 1000
"""Costs are shown per this many queries; files hold the cost per query."""


def digits(value: float, form: str) -> str:
    """A number in a format like `.4f`; a dash where it isn't defined."""
    return format(value, form) if math.isfinite(value) else NOTHING


def worded(value: float, unit: Unit, *, signed: bool = False) -> str:
    """A number with its unit; where it isn't defined, a dash, or a question mark for a cost."""
    if not math.isfinite(value):
        return UNKNOWN if unit == "usd" else NOTHING
    sign = "+" if signed or unit == "points" else ""
    match unit:
        case "share":
            return f"{100 * value:{sign}.1f} %"
        case "points":
            return f"{100 * value:{sign}.1f} pp"
        case "usd":
            return dollars(PER * value)
        case "number":
            return f"{value:{sign}.3f}"


def dollars(value: float) -> str:
    """US dollars, to three significant digits."""
    if value == 0:
        return "$0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{'-' if value < 0 else ''}${abs(value):,.{min(digits, 8)}f}"


def interval(estimate: Estimate, unit: Unit) -> str:
    """The 95 % interval of a number with its unit given once; empty where there is none."""
    if not (math.isfinite(estimate.lower) and math.isfinite(estimate.upper)):
        return ""
    lower, upper = (worded(end, unit) for end in (estimate.lower, estimate.upper))
    return f"{lower.removesuffix(' %').removesuffix(' pp')} to {upper.removeprefix('$')}"
