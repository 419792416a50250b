"""A spending limit that is never passed: what may be spent is set aside before it is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from prefill_router.errors import PrefillRouterError


@final
class OverLimitError(PrefillRouterError):
    """A call may cost more than is left."""


@final
class Reservation:
    """What is set aside for one call.

    Attributes:
        dollars: The most that it can cost.
        charged: What counts once it is over; all of it unless something else is said.
    """

    def __init__(self, dollars: float) -> None:
        self.dollars = dollars
        self.charged = dollars


@final
class Ledger:
    """What was spent and what is set aside; shared by threads.

    Args:
        limit: US dollars; None for no limit.
        spent: Of these already.
    """

    def __init__(self, *, limit: float | None, spent: float) -> None:
        self._limit = limit
        self._spent = spent
        self._aside: list[float] = []
        self._changed = threading.Condition()

    @property
    def spent(self) -> float:
        """US dollars so far; calls whose bill is unknown count with the most that they can cost."""
        with self._changed:
            return self._spent

    @contextmanager
    def reserving(self, dollars: float) -> Iterator[Reservation]:
        """Set aside what a call can cost; waits where only calls under way stand in its way.

        Raises:
            OverLimitError: It doesn't fit, and nothing is under way.
        """
        with self._changed:
            while not self._fits(dollars):
                if not self._aside:
                    raise OverLimitError(
                        f"a call may cost ${dollars:.4f}, and ${self._spent:.4f} of the limit of "
                        f"${self._limit or 0:.4f} are spent; raise --judge-max-cost"
                    )
                self._changed.wait()
            self._aside.append(dollars)
        reservation = Reservation(dollars)
        try:
            yield reservation
        finally:
            with self._changed:
                self._aside.remove(dollars)
                self._spent += reservation.charged
                self._changed.notify_all()

    def _fits(self, dollars: float) -> bool:
        return self._limit is None or self._spent + sum(self._aside) + dollars <= self._limit
