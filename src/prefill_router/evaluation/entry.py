"""What there is to say of one number: its name, its unit, its better direction, its meaning."""

from dataclasses import dataclass
from typing import Literal, final

Unit = Literal["share", "points", "usd", "number"]
Better = Literal["higher", "lower", "neither"]


@final
@dataclass(frozen=True)
class Entry:
    """One number.

    Attributes:
        label: What tables call it.
        unit: `share` of 1, a difference of shares (`points`), US dollars, or a bare number.
        better: Which direction is better.
        meaning: One sentence for somebody who hasn't read the paper.
    """

    label: str
    unit: Unit
    better: Better
    meaning: str
