"""Where the page's numbers come from."""

from typing import Protocol, runtime_checkable

from prefill_router.gateway.page.shapes import (
    Curve,
    DecisionDetail,
    Decisions,
    Drift,
    LamSet,
    Overview,
    Spend,
    Targets,
    Timeline,
    WhatIf,
)


@runtime_checkable
class PageSource(Protocol):
    """What the page asks for; every method may wait, and none may block the loop.

    A method that can't answer now raises a `PrefillRouterError`, whose message the page shows; a
    `RefusalError` sets the status too.
    """

    async def overview(self) -> Overview:
        """The state of the gateway."""
        ...

    async def timeline(self) -> Timeline:
        """The last hour, minute by minute."""
        ...

    async def decisions(
        self, *, after: str | None, limit: int, outcome: str | None = None, part: str | None = None
    ) -> Decisions:
        """The requests that ended lately.

        Args:
            after: A cursor of an earlier reply: only what ended since; None, and a cursor that
                isn't known (any more), for the latest.
            limit: At most so many, the newest.
            outcome: Only those that ended so.
            part: Only those whose id this is a part of.
        """
        ...

    async def decision(self, id: str) -> DecisionDetail | None:  # noqa: A002
        """All of one decision; None if there is none of this name."""
        ...

    async def spend(self) -> Spend:
        """What was spent, and what is left of the budgets."""
        ...

    async def curve(self) -> Curve:
        """The accuracy-cost curve of the recorded traffic; at most some 200 points."""
        ...

    async def whatif(self, lam: float) -> WhatIf:
        """What another lam would have changed; it changes nothing."""
        ...

    async def targets(self) -> Targets:
        """How the targets do."""
        ...

    async def drift(self) -> Drift:
        """How far the requests have moved from the train rows."""
        ...

    async def set_lam(self, lam: float) -> LamSet:
        """Make `lam` the trade-off of requests that name none, until the gateway ends."""
        ...
