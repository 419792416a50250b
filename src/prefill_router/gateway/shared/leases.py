"""This replica's part of each budget: what it spent, and what was leased to it.

A decision looks only at these numbers. A lease belongs to the replica until it gives it back or the
hour or day ends, so that one that is cut off may go on with it, and what one that was killed has
spent is never spent again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.gateway.decide import BudgetState, Per
from prefill_router.gateway.settings import BudgetSettings
from prefill_router.gateway.shared import tables
from prefill_router.gateway.shared.connection import Rows, Statement

LeaseName = tuple[str, Per, int]
"""The owner of a budget (a key's name, or empty for the whole gateway), hour or day, and which."""
_IDLE_SECONDS = 30.0
_DENIED_SECONDS = 1.0
_LEAST = 1 / 8


@final
@dataclass(slots=True)
class _Lease:
    """US dollars of one window; times are of a monotonic clock, in seconds."""

    spent: float = 0.0
    granted: float = 0.0
    others: float = 0.0
    spent_at: float = 0.0
    denied_at: float = float("-inf")


@final
class BudgetLeases:
    """The leases of one replica; it implements `BudgetShares`.

    Args:
        replica: The replica's name.
        share: The share of a budget that is leased at a time.
        clock: A monotonic clock, in seconds.

    Attributes:
        is_cut_off: Whether no further lease can be had now.
        unwritten: The leases whose spending isn't in the database yet.
    """

    def __init__(
        self, replica: str, *, share: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._replica, self._share, self._clock = replica, share, clock
        self._leases: dict[LeaseName, _Lease] = {}
        self.is_cut_off = False
        self.unwritten: set[LeaseName] = set()

    def count(self, owner: str, per: Per, window: int, dollars: float) -> None:
        """Count this replica's spending."""
        name = (owner, per, window)
        lease = self._lease(name)
        lease.spent += dollars
        lease.spent_at = self._clock()
        self.unwritten.add(name)

    def find(self, budget: BudgetSettings, window: int) -> tuple[float, float]:
        """The dollars that all replicas spent, and what is left of this one's lease."""
        lease = self._leases.get((budget.key or "", budget.per, window))
        if lease is None:
            return 0.0, 0.0
        return lease.spent + lease.others, lease.granted - lease.spent

    def low(self, states: Iterable[BudgetState]) -> list[BudgetState]:
        """Those of these budgets of whose lease less than half is left."""
        return [s for s in states if s.leased < self._size(s) / 2 and self._may_ask(s)]

    def grants(self, states: Iterable[BudgetState], replicas: int) -> Iterator[Statement]:
        """The statements that ask for leases, each for one of these budgets.

        Args:
            states: The budgets.
            replicas: How many replicas there are.
        """
        for state in states:
            size = self._size(state)
            owner, per, window = name = _name(state)
            self._lease(name)
            yield (
                tables.GRANT,
                {
                    "owner": owner,
                    "per": per,
                    "win": window,
                    "replica": self._replica,
                    "dollars": state.budget.dollars,
                    "want": max(0.0, size - state.leased),
                    "parts": 2 * replicas,
                    "least": _LEAST * size + max(0.0, -state.leased),
                },
            )

    def granted(self, states: Iterable[BudgetState], rows: Sequence[Rows]) -> None:
        """Take what the database granted, in the order of `grants`."""
        for state, ((granted, others),) in zip(states, rows, strict=True):
            lease = self._lease(_name(state))
            lease.others = others
            if granted <= max(lease.granted, lease.spent):
                lease.denied_at = self._clock()
            lease.granted = granted

    def spending(self, names: Iterable[LeaseName]) -> list[dict[str, Any]]:
        """The rows of the spending of leases."""
        fields = ("owner", "per", "win", "replica", "spent")
        values = ((*name, self._replica, self._lease(name).spent) for name in names)
        return [dict(zip(fields, row, strict=True)) for row in values]

    def in_use(self) -> tuple[list[Any], ...]:
        """The columns owner, per and win of all leases."""
        return tuple([list(column) for column in zip(*self._leases, strict=True)]) or ([],) * 3

    def learn(self, rows: Rows) -> None:
        """Take what other replicas spent: owner, per, win, and US dollars."""
        for owner, per, window, dollars in rows:
            self._lease((owner, per, window)).others = float(dollars)

    def returns(self, reserved: Callable[[str], float] | None = None) -> Iterator[Statement]:
        """The statements that give back what isn't used.

        Args:
            reserved: Returns the dollars that requests in flight of an owner need, which are kept
                of leases that nothing was spent of for half a minute; None gives all back.
        """
        before = self._clock() - _IDLE_SECONDS
        for name, lease in self._leases.items():
            rest = lease.spent if reserved is None else lease.spent + reserved(name[0])
            if rest < lease.granted and (reserved is None or lease.spent_at < before):
                lease.granted = rest
                yield tables.RETURN, (rest, *name, self._replica, rest)

    def rewrite(self) -> None:
        """Write all spending again, since a database that crashed may have lost the latest."""
        self.unwritten.update(self._leases)

    def forget(self, oldest: Mapping[Per, int]) -> None:
        """Forget windows before the oldest that is kept."""
        self._leases = {n: lease for n, lease in self._leases.items() if n[2] >= oldest[n[1]]}
        self.unwritten &= self._leases.keys()

    def _size(self, state: BudgetState) -> float:
        """The dollars that a lease should have, beyond those that requests in flight need."""
        return self._share * state.budget.dollars

    def _may_ask(self, state: BudgetState) -> bool:
        lease = self._leases.get(_name(state))
        return lease is None or self._clock() - lease.denied_at >= _DENIED_SECONDS

    def _lease(self, name: LeaseName) -> _Lease:
        lease = self._leases.get(name)
        if lease is None:
            lease = self._leases[name] = _Lease(spent_at=self._clock())
            self.unwritten.add(name)
        return lease


def _name(state: BudgetState) -> LeaseName:
    return state.budget.key or "", state.budget.per, state.window
