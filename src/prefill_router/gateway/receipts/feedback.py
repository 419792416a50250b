"""Feedback: how good somebody found an answer."""

import math
from dataclasses import dataclass
from typing import final

from prefill_router.errors import DataError
from prefill_router.gateway.receipts.rows import Column, Row

FEEDBACK_COLUMNS: tuple[Column, ...] = (
    Column("id", "text"),
    Column("source", "text"),
    Column("at", "real"),
    Column("score", "real"),
)
_LONGEST = 200


@final
@dataclass(frozen=True, kw_only=True)
class Feedback:
    """How good somebody found one answer; of each source, the latest score counts.

    Attributes:
        id: The decision's.
        score: From 0, wrong, to 1, right.
        at: When, seconds since 1970.
        source: Who says so, such as `user` or `judge`.

    Raises:
        DataError: The score isn't in [0, 1], or an id or a source is empty, long or no plain text.
    """

    id: str
    score: float
    at: float
    source: str = "user"

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise DataError(f"the score is {self.score}; it must be in [0, 1]: 0 wrong, 1 right")
        if not math.isfinite(self.at):
            raise DataError(f"the time is {self.at}; it must be seconds since 1970")
        for name, value in (("id", self.id), ("source", self.source)):
            if not 0 < len(value) <= _LONGEST or not value.isprintable():
                raise DataError(f"the {name} must be printable, of 1 to {_LONGEST} characters")

    def row(self) -> Row:
        """In the order of `FEEDBACK_COLUMNS`."""
        return (self.id, self.source, float(self.at), float(self.score))
