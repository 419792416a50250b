"""Amounts as they are printed: dollars and counts."""

import math

_DIGITS, _MOST_DIGITS = 4, 12
_CENT = 0.01


def dollars(value: float, *, digits: int | None = None) -> str:
    """US dollars.

    Args:
        value: How many.
        digits: Behind the point; as many as this one needs where that isn't said.
    """
    if digits is not None:
        return f"${value:,.{digits}f}"
    return f"${value:,.2f}" if value >= 100 or value == 0 else f"${value:,.{needed(value)}f}"


def needed(value: float) -> int:
    """Digits behind the point of an amount: under a cent as many as show two that aren't zero."""
    if not 0 < value < _CENT:
        return _DIGITS
    return min(max(1 - math.floor(math.log10(value)), _DIGITS), _MOST_DIGITS)


def rounded_up(value: float) -> str:
    """A limit in dollars: to cents, or, where it is less, to two digits."""
    digits = max(2, 1 - math.floor(math.log10(max(value, 1e-9))))
    step = 10.0**-digits
    return f"{math.ceil(value / step) * step:.{digits}f}"


def counted(number: int, one: str, several: str = "") -> str:
    """A number and what it counts."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
