"""Dollars that may be spent: as they run out, lam is lowered, and in the end requests are refused.

Up to `soften_from` of a budget lam is what was asked for; from there on it falls in a straight
line, to 0 where all is spent. What requests under way are expected to cost counts as spent. Of
several budgets, the one that lowers lam most counts. Budgets are of hours and days (UTC), so their
clock tells the time of day and doesn't jump.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, final

from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.settings import BudgetSettings

Per = Literal["hour", "day"]
_SECONDS: dict[Per, int] = {"hour": 3600, "day": 86_400}
_STAGES = 10
_WINDOWS = 2


@final
class Allowance(NamedTuple):
    """What budgets leave of a trade-off.

    Attributes:
        lam: After budgets.
        note: What the log is to say; None for nothing. Once for every tenth by which lam falls.
        exhausted: Whether all is spent, so that the cheapest target is to answer.
    """

    lam: float
    note: str | None = None
    exhausted: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """How far one budget is used.

    Attributes:
        budget: The budget.
        spent: In the present hour or day, US dollars.
        reserved: What requests under way are expected to cost, US dollars.
        factor: What lam is multiplied by.
        seconds_left: Until the next hour or day.
    """

    budget: BudgetSettings
    spent: float
    reserved: float
    factor: float
    seconds_left: float

    @property
    def left(self) -> float:
        """Dollars that are left, at least 0."""
        return max(0.0, self.budget.dollars - self.spent - self.reserved)


@final
class Budgets:
    """What was spent in the present hour and day (UTC), by the whole gateway and by every key.

    It outlives reloads: what was spent is counted whether or not a budget asks for it. Of each key
    the two latest hours and days are known, so that a clock that is set back finds what was spent.

    Args:
        budgets: What may be spent.
        steady: Gives the time that counts for the system's.
    """

    def __init__(
        self, budgets: Sequence[BudgetSettings] = (), *, steady: Callable[[float], float] = float
    ) -> None:
        self._budgets, self._steady = tuple(budgets), steady
        self._spent: dict[tuple[Per, str | None], dict[int, float]] = {}
        self._reserved: dict[str | None, float] = {}
        self._under_way: dict[str, tuple[str | None, float]] = {}
        self._told: dict[BudgetSettings, tuple[int, int]] = {}

    def use(self, budgets: Sequence[BudgetSettings]) -> None:
        """Go on with other budgets, after a reload."""
        self._budgets = tuple(budgets)
        self._told = {budget: told for budget, told in self._told.items() if budget in budgets}

    def spend(self, key: str | None, dollars: float, at: float) -> None:
        """Count what a request cost.

        Args:
            key: The name of the client's key; None where none is asked for.
            dollars: Its cost.
            at: Now, seconds since 1970.
        """
        self._count(key, dollars, self._steady(at))

    def _count(self, key: str | None, dollars: float, at: float) -> None:
        for per, seconds in _SECONDS.items():
            window = int(at // seconds)
            for whose in {None, key}:
                spent = self._spent.setdefault((per, whose), {})
                spent[window] = spent.pop(window, 0.0) + dollars
                while len(spent) > _WINDOWS:
                    del spent[next(iter(spent))]  # what was spent in longest ago

    def reserve(self, name: str, key: str | None, dollars: float) -> None:
        """Set aside what a request is expected to cost, until it is released.

        Args:
            name: The name of its decision.
            key: The name of the client's key; None where none is asked for.
            dollars: Its estimated cost.
        """
        self.release(name)
        self._under_way[name] = (key, dollars)
        for whose in {None, key}:
            self._reserved[whose] = self._reserved.get(whose, 0.0) + dollars

    def release(self, name: str) -> str | None:
        """Take back what was set aside; gives the name of the key that it was for, if any."""
        key, dollars = self._under_way.pop(name, (None, 0.0))
        if not self._under_way:
            self._reserved.clear()  # no rounding is left over
        for whose in {None, key} & self._reserved.keys():
            self._reserved[whose] -= dollars
        return key

    def lam(self, asked: float, key: str | None, at: float) -> Allowance:
        """The trade-off that budgets leave.

        Args:
            asked: What was asked for or set.
            key: The name of the client's key; None where none is asked for.
            at: The time, seconds since 1970.

        Raises:
            RefusalError: All of a budget that stops is spent; it says when to ask again.
        """
        at = self._steady(at)
        states = [self._state(b, at) for b in self._budgets if b.key is None or b.key == key]
        if not states:
            return Allowance(asked)
        stopped = [state for state in states if state.budget.stop and state.factor <= 0]
        if stopped:
            raise _all_spent(max(stopped, key=_wait))
        least = min(states, key=lambda state: state.factor)
        notes = [note for state in states if (note := self._note(state, at)) is not None]
        return Allowance(asked * least.factor, "; ".join(notes) or None, least.factor <= 0)

    def states(self, at: float) -> tuple[BudgetState, ...]:
        """How far every budget is used at a time, in the order of the settings."""
        at = self._steady(at)
        return tuple(self._state(budget, at) for budget in self._budgets)

    def restore(self, rows: Iterable[tuple[str | None, float, float]]) -> None:
        """Count what receipts tell, oldest first: the key's name, when, and the cost."""
        for key, at, cost in rows:
            self._count(key, cost, at)

    def _state(self, budget: BudgetSettings, at: float) -> BudgetState:
        seconds = _SECONDS[budget.per]
        spent = self._spent.get((budget.per, budget.key), {}).get(int(at // seconds), 0.0)
        reserved = max(0.0, self._reserved.get(budget.key, 0.0))
        share = (spent + reserved) / budget.dollars
        return BudgetState(
            budget=budget,
            spent=spent,
            reserved=reserved,
            factor=min(1.0, max(0.0, (1 - share) / (1 - budget.soften_from))),
            seconds_left=seconds - at % seconds,
        )

    def _note(self, state: BudgetState, at: float) -> str | None:
        """What is new: another tenth has gone, or what was lowered is at its full height again."""
        budget = state.budget
        window = int(at // _SECONDS[budget.per])
        stage = _STAGES - math.ceil(state.factor * _STAGES - 1e-9)
        told_in, told = self._told.get(budget, (window, 0))
        if window == told_in and stage <= told:
            return None
        self._told[budget] = (window, stage)
        if stage == 0:
            whole = f"a new {budget.per}: {_whose(budget)} is whole, and lam is as asked"
            return whole if told else None
        used = 100 * (state.spent + state.reserved) / budget.dollars
        return (
            f"{used:.0f} % of {_whose(budget)} is used; lam is at {100 * state.factor:.0f} % of "
            "what is asked"
        )


def _whose(budget: BudgetSettings) -> str:
    owner = "the gateway" if budget.key is None else f"the key {budget.key!r}"
    return f"the budget of {owner}, {budget.dollars:g} dollars per {budget.per},"


def _wait(state: BudgetState) -> int:
    """Seconds until asking again may help: requests under way may cost less than was expected."""
    return max(1, math.ceil(state.seconds_left)) if state.spent >= state.budget.dollars else 1


def _all_spent(state: BudgetState) -> RefusalError:
    wait = _wait(state)
    how = "is held by requests under way" if state.spent < state.budget.dollars else "is spent"
    return RefusalError(
        f"{_whose(state.budget)} {how}; ask again in {wait} seconds",
        status=429,
        kind="insufficient_quota",
        code="budget_spent",
        headers={"retry-after": str(wait)},
    )


_log = logging.getLogger(__name__)
_SLACK = 60.0
_BELIEVED = 3600.0
_running = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds that only grow, those included in which the machine slept, where that is known."""


@final
class SteadyClock:
    """Gives the system's time, and goes on evenly where that jumps by more than a minute.

    A jump that lasts is believed after an hour: until then what was spent today stays spent.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = _running) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._jumped_at: float | None = None

    def __call__(self, at: float) -> float:
        """The time that counts.

        Args:
            at: The system's, seconds since 1970; now, or not long ago.
        """
        now = self._clock()
        jump = 0.0 if self._offset is None else at - now - self._offset
        if abs(jump) <= _SLACK:
            self._offset, self._jumped_at = at - now, None
            return at
        if self._jumped_at is None:
            self._jumped_at = now
            told = "the system's clock jumped by %.0f s; budgets go on without that, for an hour"
            _log.warning(told, jump)
        if now - self._jumped_at <= _BELIEVED:
            return at - jump
        self._offset, self._jumped_at = at - now, None
        return at
