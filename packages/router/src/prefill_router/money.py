"""US dollars as text, the same in tables, messages and reports; never with an exponent."""

import math
from decimal import Decimal

_CENTS, _DIGITS, _MOST = 2, 3, 12


def dollars(value: float, *, digits: int | None = None) -> str:
    """An amount in US dollars: with cents, or with three significant digits if these are more.

    Args:
        value: The amount, finite.
        digits: Decimal places instead, so that a column of amounts has the same.
    """
    if value == 0 and digits is None:
        return "$0"
    places = decimal_places(value) if digits is None else digits
    return f"{'-' if value < 0 else ''}${abs(value):,.{places}f}"


def decimal_places(value: float) -> int:
    """The decimal places with which `dollars` writes this amount, 2 to 12."""
    if value == 0:
        return _CENTS
    rounded = float(f"{abs(value):.{_DIGITS - 1}e}")  # 0.9996 is $1.00
    return min(max(_DIGITS - 1 - math.floor(math.log10(rounded)), _CENTS), _MOST)


def list_price(value: float) -> str:
    """A price or a limit as it was given, to six significant digits, such as `$0.4` or `$1500`."""
    return f"${Decimal(f'{value:.6g}'):f}"
