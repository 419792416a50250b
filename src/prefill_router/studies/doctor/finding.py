"""One finding of a check-up: a line that anybody can read, and the numbers behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.wording import interval, worded

Sign = Literal["good", "bad", "unclear", "note"]


@final
@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: Its key in `doctor.json`.
        title: What was checked.
        sign: `good`, `bad`, `unclear` where the queries are too few to say, `note` where it is for
            information alone.
        said: One line, with the number.
        numbers: Plain values for JSON.
    """

    name: str
    title: str
    sign: Sign
    said: str
    numbers: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "numbers": dict(self.numbers)}


def points(estimate: Estimate) -> str:
    """A difference in percentage points, with its interval."""
    spread = interval(estimate, "points")
    return worded(estimate.value, "points") + (f" ({spread})" if spread else "")


def percent(value: float) -> str:
    """A share."""
    return worded(value, "share")
