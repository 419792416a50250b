"""What judging a run has cost."""

from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True)
class Bill:
    """What judging a run has cost, over all its gradings.

    Attributes:
        calls: Calls to judges.
        cost: US dollars of the replies whose cost is known.
        at_risk: US dollars that calls whose bill is unknown can have cost at most, beyond `cost`.
        unpriced: Replies that cost nobody knows what: without a price, nor a cost that was told.
        limit_that_would_do: US dollars; a limit under which all that the limit held back fits.
            None where it held nothing back.
    """

    calls: int
    cost: float
    at_risk: float
    unpriced: int
    limit_that_would_do: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))
