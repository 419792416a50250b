"""Numbers as clients write them in names and headers."""

import math
import re

_is_number = re.compile(
    r"(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})(?:[eE][+-]?[0-9]{1,3})?"
).fullmatch


def read_number(text: str) -> float | None:
    """A number that is finite and not negative; None where the text is none.

    Only what JSON could hold is taken, beside `.5` and `1.`: no sign, no `nan`, no `1_000`, no
    digits of other scripts.
    """
    if _is_number(text) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None
