"""What budgets leave: the lam that a request may have, and when it is refused.

As a budget is used up, lam is lowered, and in the end requests may be refused. Up to the share
`soften_from` of a budget, lam is as requested; from there it falls linearly to 0 where all is
spent. The estimated cost of requests in flight counts as spent. Of several budgets, the one that
lowers lam most applies. Budgets are per hour or day (UTC), so their clock follows the time of day
but ignores jumps. Where replicas share budgets, each spends a lease of its own.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol, final

from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.settings import (
    BudgetSettings,
)

Per = Literal["hour", "day"]
_log = logging.getLogger(__name__)
_SECONDS: dict[Per, int] = {"hour": 3600, "day": 86_400}
_STAGES = 10
_WINDOWS = 2
_SLACK = 60.0  # seconds; a longer jump of the system's clock is ignored at first
_BELIEVED = 3600.0  # seconds, after which it is accepted
_running = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""A monotonic clock in seconds, which includes time asleep where the system measures it."""


@final
class Allowance(NamedTuple):
    """The trade-off after budgets.

    Attributes:
        lam: The trade-off after budgets.
        note: A message for the log, once for every tenth by which lam falls; None for none.
        exhausted: Whether all is spent, so that the cheapest target must answer.
    """

    lam: float
    note: str | None = None
    exhausted: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """How much of one budget is used.

    Attributes:
        budget: The budget.
        window: The number of the current hour or day since 1970.
        spent: US dollars spent in it, by all replicas.
        reserved: US dollars that requests in flight are expected to cost.
        factor: The factor that lam is multiplied by.
        seconds_left: Seconds until the next hour or day.
        leased: What is left of this replica's lease, in US dollars, requests in flight deducted;
            infinite where the budget isn't shared.
        is_cut_off: Whether no further lease can be had now.
    """

    budget: BudgetSettings
    window: int
    spent: float
    reserved: float
    factor: float
    seconds_left: float
    leased: float = math.inf
    is_cut_off: bool = False

    @property
    def left(self) -> float:
        """The remaining US dollars, at least 0."""
        return max(0.0, self.budget.dollars - self.spent - self.reserved)


class BudgetShares(Protocol):
    """What replicas share of their budgets; an empty owner is the whole gateway."""

    @property
    def is_cut_off(self) -> bool:
        """Whether no further lease can be had now."""

    def count(self, owner: str, per: Per, window: int, dollars: float) -> None:
        """Count this replica's spending."""

    def find(self, budget: BudgetSettings, window: int) -> tuple[float, float]:
        """The dollars that all replicas spent, and what is left of this one's lease."""


@final
class Budgets:
    """Spending in the current hour and day (UTC), of the whole gateway and of every key.

    It survives reloads: spending is counted whether or not a budget needs it. The two latest hours
    and days of each key are kept, so that nothing is lost when the clock is set back.

    Args:
        budgets: The budgets.
        steady: Maps the system's time to the time that budgets use.

    Attributes:
        shares: The leases of budgets that replicas share; None where there is one gateway.
    """

    def __init__(
        self, budgets: Sequence[BudgetSettings] = (), *, steady: Callable[[float], float] = float
    ) -> None:
        self._budgets, self._steady = tuple(budgets), steady
        self.shares: BudgetShares | None = None
        self._spent: dict[tuple[Per, str | None], dict[int, float]] = {}
        self._reserved: dict[str | None, float] = {}
        self._under_way: dict[str, tuple[str | None, float]] = {}
        self._stages: dict[BudgetSettings, tuple[int, int]] = {}

    def use(self, budgets: Sequence[BudgetSettings]) -> None:
        """Use other budgets, after a reload."""
        self._budgets = tuple(budgets)
        self._stages = {
            budget: stage for budget, stage in self._stages.items() if budget in budgets
        }

    def spend(self, key: str | None, dollars: float, at: float) -> None:
        """Count the cost of a request.

        Args:
            key: The name of the client's key; None where the gateway has no keys.
            dollars: Its cost in US dollars.
            at: The current time, in seconds since 1970.
        """
        self._count(key, dollars, self._steady(at))

    def _count(self, key: str | None, dollars: float, at: float) -> None:
        for per, seconds in _SECONDS.items():
            window = int(at // seconds)
            for whose in {None, key}:
                spent = self._spent.setdefault((per, whose), {})
                spent[window] = spent.pop(window, 0.0) + dollars
                while len(spent) > _WINDOWS:
                    del spent[next(iter(spent))]  # the one that was added to longest ago
                if self.shares is not None:
                    self.shares.count(whose or "", per, window, dollars)

    def reserve(self, name: str, key: str | None, dollars: float) -> None:
        """Reserve the estimated cost of a request until it is released.

        Args:
            name: The id of its decision.
            key: The name of the client's key; None where the gateway has no keys.
            dollars: Its estimated cost in US dollars.
        """
        self.release(name)
        self._under_way[name] = (key, dollars)
        for whose in {None, key}:
            self._reserved[whose] = self._reserved.get(whose, 0.0) + dollars

    def release(self, name: str) -> str | None:
        """Release a reservation; returns the name of the key that it was for, if any."""
        key, dollars = self._under_way.pop(name, (None, 0.0))
        if not self._under_way:
            self._reserved.clear()  # leaves no rounding error
        for whose in {None, key} & self._reserved.keys():
            self._reserved[whose] -= dollars
        return key

    def dollars_reserved(self, key: str | None) -> float:
        """The dollars reserved for a key's requests in flight, or for all where it is None."""
        return max(0.0, self._reserved.get(key, 0.0))

    def adjust_lam(self, lam_asked: float, key: str | None, at: float) -> Allowance:
        """The trade-off after budgets.

        Args:
            lam_asked: The trade-off of the request or the settings.
            key: The name of the client's key; None where the gateway has no keys.
            at: The time, in seconds since 1970.

        Raises:
            RefusalError: A budget that stops requests is spent; it says when to try again.
        """
        states = self.states_of(key, at)
        if not states:
            return Allowance(lam_asked)
        stopped = [state for state in states if state.budget.stop and state.factor <= 0]
        if stopped:
            raise _spent_error(max(stopped, key=_seconds_to_wait))
        least = min(states, key=lambda state: state.factor)
        notes = [note for state in states if (note := self._note_change(state)) is not None]
        return Allowance(lam_asked * least.factor, "; ".join(notes) or None, least.factor <= 0)

    def states_of(self, key: str | None, at: float) -> list[BudgetState]:
        """How much of the budgets of a key's requests is used; arguments as `adjust_lam`."""
        at = self._steady(at)
        applying = (b for b in self._budgets if b.key is None or b.key == key)
        return [self._state(budget, at, decides=True) for budget in applying]

    def states(self, at: float) -> tuple[BudgetState, ...]:
        """How much of every budget is used at a time, in the order of the settings."""
        at = self._steady(at)
        return tuple(self._state(budget, at) for budget in self._budgets)

    def restore(self, rows: Iterable[tuple[str | None, float, float]]) -> None:
        """Count the costs in receipts, oldest first: the key's name, the time, and the cost."""
        for key, at, cost in rows:
            self._count(key, cost, at)

    def _state(self, budget: BudgetSettings, at: float, *, decides: bool = False) -> BudgetState:
        seconds = _SECONDS[budget.per]
        window = int(at // seconds)
        leased, is_cut_off = math.inf, False
        reserved = self.dollars_reserved(budget.key)
        if self.shares is None:
            spent = self._spent.get((budget.per, budget.key), {}).get(window, 0.0)
        else:
            spent, left = self.shares.find(budget, window)
            leased, is_cut_off = left - reserved, self.shares.is_cut_off
        share = (spent + reserved) / budget.dollars
        factor = min(1.0, max(0.0, (1 - share) / (1 - budget.soften_from)))
        return BudgetState(
            budget=budget,
            window=window,
            spent=spent,
            reserved=reserved,
            factor=factor if leased > 0 or not (decides or is_cut_off) else 0.0,
            seconds_left=seconds - at % seconds,
            leased=leased,
            is_cut_off=is_cut_off,
        )

    def _note_change(self, state: BudgetState) -> str | None:
        """A message where lam fell by another tenth, or was restored in a new window."""
        budget, window = state.budget, state.window
        stage = _STAGES - math.ceil(state.factor * _STAGES - 1e-9)
        last_window, last_stage = self._stages.get(budget, (window, 0))
        if window == last_window and stage <= last_stage:
            return None
        self._stages[budget] = (window, stage)
        if stage == 0:
            what = _describe_budget(budget)
            note = f"a new {budget.per}: {what} is unspent, and lam is as requested"
            return note if last_stage else None
        used = 100 * (state.spent + state.reserved) / budget.dollars
        return (
            f"{used:.0f} % of {_describe_budget(budget)} is used; lam is lowered to "
            f"{100 * state.factor:.0f} % of what is requested"
        )


def _describe_budget(budget: BudgetSettings) -> str:
    owner = "the gateway" if budget.key is None else f"the key {budget.key!r}"
    return f"the budget of {owner}, {budget.dollars:g} dollars per {budget.per},"


def _seconds_to_wait(state: BudgetState) -> int:
    """Seconds until a retry may help: requests in flight may cost less than expected."""
    return max(1, math.ceil(state.seconds_left)) if state.spent >= state.budget.dollars else 1


def _spent_error(state: BudgetState) -> RefusalError:
    if state.is_cut_off and state.spent < state.budget.dollars:
        return RefusalError(
            f"this replica has spent its part of {_describe_budget(state.budget)} and can't reach "
            "the database for more; try again in 5 s",
            status=503,
            kind="server_error",
            code="budget_unknown",
            headers={"retry-after": "5"},
        )
    wait = _seconds_to_wait(state)
    how = "is reserved by requests in flight" if state.spent < state.budget.dollars else "is spent"
    return RefusalError(
        f"{_describe_budget(state.budget)} {how}; try again in {wait} s",
        status=429,
        kind="insufficient_quota",
        code="budget_spent",
        headers={"retry-after": str(wait)},
    )


@final
class SteadyClock:
    """The system's time, with jumps of more than a minute ignored at first.

    A jump that lasts is accepted after an hour; until then the current day's spending still counts.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = _running) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._jumped_at: float | None = None

    def __call__(self, at: float) -> float:
        """The time that budgets use, in seconds since 1970.

        Args:
            at: The system's time, in seconds since 1970; now or shortly before.
        """
        now = self._clock()
        jump = 0.0 if self._offset is None else at - now - self._offset
        if abs(jump) <= _SLACK:
            self._offset, self._jumped_at = at - now, None
            return at
        if self._jumped_at is None:
            self._jumped_at = now
            message = "the system's clock jumped by %.0f s; budgets ignore the jump for an hour"
            _log.warning(message, jump)
        if now - self._jumped_at <= _BELIEVED:
            return at - jump
        self._offset, self._jumped_at = at - now, None
        return at
