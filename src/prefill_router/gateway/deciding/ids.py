"""Names of decisions: they grow with time, so that receipts are kept in their order."""

import os
from collections.abc import Callable

_RANDOM_BITS = 62
_SHARE_DIGITS = 13


def decision_id(at: float, *, random: Callable[[int], bytes] = os.urandom) -> str:
    """A new name: `pr_` and the 32 hexadecimal digits of a UUID of version 7 (RFC 9562, 5.7).

    The 12 bits behind the milliseconds are their fraction (RFC 9562, 6.2, method 3).

    Args:
        at: Seconds since 1970.
        random: Gives so many random bytes.
    """
    ticks = int(at * 4_096_000)
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    chance = int.from_bytes(random(8), "big") & ((1 << _RANDOM_BITS) - 1)
    high = milliseconds << 16 | 0x7 << 12 | fraction
    return f"pr_{high << 64 | 0b10 << _RANDOM_BITS | chance:032x}"


def share_of(name: str) -> float:
    """A number in [0, 1) made of a name's last hexadecimal digits, always the same for the name.

    Args:
        name: A decision's, or that of a conversation.
    """
    return int(name[-_SHARE_DIGITS:], 16) / float(1 << 4 * _SHARE_DIGITS)
