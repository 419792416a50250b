"""The choice among the targets that may answer: the trade-off that budgets leave, and who wins.

The policy ranks the targets (the order of `router.decision.decide`); without a forecast that is
trusted, the fallback does. A conversation keeps its target unless a switch gains more than it
loses. A provider reads the turns that it has just seen from its cache, at a lower price. So the
current target is priced with what its cache should hold, and every other target in full; Equation 2
compares them at these costs. An agent sends several requests for what a person asks, and only the
first finds an empty cache at another target; so the mean of the expected requests is compared.

As a budget is used up, lam is lowered, and in the end requests may be refused. Up to the share
`soften_from` of a budget, lam is as requested; from there it falls linearly to 0 where all is
spent. The estimated cost of requests in flight counts as spent. Of several budgets, the one that
lowers lam most applies. Budgets are per hour or day (UTC), so their clock follows the time of day
but ignores jumps. Where replicas share budgets, each spends a lease of its own.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Protocol, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy import Lambda, Policy, rank, score
from prefill_router_gateway.decide.affinity import Sessions, SessionState, is_routed
from prefill_router_gateway.decide.candidates import CostScores, PerTarget, RequestEstimate
from prefill_router_gateway.decide.latency import order_ready, waiting_dollars
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.records import FALLBACKS, PredictedWaits, Reason, RoutingRequest
from prefill_router_gateway.settings import (
    BudgetSettings,
    GatewaySettings,
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
        """Reserve the expected cost of a request until it is released.

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


@final
@dataclass(frozen=True, eq=False)
class TargetChoice:
    """The result of the free choice.

    Attributes:
        order: The columns of the targets that may answer, the chosen one first.
        reason: Why it was chosen.
        winner: The column that the policy alone would choose; None without a forecast.
        cost: Every target's estimated cost in US dollars, with the current target's cache.
    """

    order: list[int]
    reason: Reason
    winner: int | None
    cost: PerTarget


@final
class TargetChooser:
    """Chooses by the policy, the fallback, the routed share, and the conversation's target.

    Args:
        names: The pool's targets.
        policy: The policy.
        costs: The router's costs.
        prior: Every target's accuracy on the train rows; None where unknown. It counts as unknown
            where a value isn't finite.
        settings: The gateway's settings.
        sessions: What is remembered of conversations.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        policy: Policy,
        costs: CostScores,
        prior: PerTarget | None,
        *,
        settings: GatewaySettings,
        sessions: Sessions,
    ) -> None:
        self._names = names
        self._policy = policy
        self._costs = costs
        self._prior = prior if prior is not None and np.isfinite(prior).all() else None
        self._settings = settings
        self._sessions = sessions
        self._column = {name: k for k, name in enumerate(names)}

    def choose(
        self,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
        *,
        decision: str,
        waits: PredictedWaits | None = None,
        limited: Collection[int] = (),
    ) -> TargetChoice:
        """Choose a target for one request.

        Args:
            question: The request.
            estimate: Its estimates.
            allowance: The trade-off after budgets.
            among: The columns of the targets that may answer, at least one.
            decision: The decision's id.
            waits: The predicted waiting; None where it doesn't count.
            limited: The columns of the targets that come last, since their rate limits allow no
                further request.
        """
        able, among = among, self._apply_floor(question, estimate, allowance, among)
        chosen = self._choose(question, estimate, allowance, among, able, decision, waits, limited)
        return _append_rest(chosen, estimate, able)

    def _choose(
        self,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
        able: Sequence[int],
        decision: str,
        waits: PredictedWaits | None,
        limited: Collection[int],
    ) -> TargetChoice:
        """The choice among the columns above the floor; those that are `able` may be below it."""
        order, winner = self._rank(estimate, allowance, among)
        rest = self._outside_share(question, allowance, able, decision)
        if rest is not None:
            return TargetChoice(_put_first(rest, order), "share", winner, estimate.cost)
        unready = {*limited, *(k for k in order if waits and waits.is_late(self._names[k]))}
        reason: Reason = "policy" if estimate.fallback is None else "fallback"
        if waits is not None or limited:
            order = self._order_ready(estimate, allowance.lam, order, waits, limited)
            if estimate.trusted_correctness is not None and order[0] != winner:
                reason = "headroom" if winner in limited else "latency"
        current = self._find_current(question, estimate, allowance, among, order[0], waits)
        if current is None:
            return TargetChoice(order, reason, winner, estimate.cost)
        present, with_cache, why = current
        if why != "state" and present in unready and order[0] not in unready:
            why = None
        if why is not None and (present != order[0] or why != "session"):
            return TargetChoice(_put_first(present, order), why, winner, with_cache)
        return TargetChoice(order, reason, winner, with_cache)

    def find_stronger(
        self, estimate: RequestEstimate, lam: float, among: Sequence[int], present: str
    ) -> list[int]:
        """The columns that are likelier to be right than the present target, best first.

        Args:
            estimate: The estimates of the request; its forecast is trusted.
            lam: The trade-off after budgets.
            among: The columns of the targets that may answer.
            present: The target at present.
        """
        p, cost = estimate.trusted_correctness, self._costs.normalise(estimate.cost)
        if p is None:
            return []
        columns = [k for k in among if p[k] > p[self._column[present]]]
        if not columns:
            return []
        return policy_order(self._policy, p, cost, lam, names=self._names, among=columns)

    def _apply_floor(
        self,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
    ) -> Sequence[int]:
        """The columns of the targets that are probable enough, or else of the most probable one.

        A floor moves no conversation that keeps its target, and spends no budget.
        """
        floor, p = question.floor, estimate.trusted_correctness
        has_target = self._sessions.last_state(question.session) is not None
        is_kept = has_target and (question.holds_state or question.agent.is_ongoing)
        if floor is None or p is None or allowance.exhausted or is_kept:
            return among
        return [k for k in among if p[k] >= floor] or [max(among, key=lambda k: p[k])]

    def _rank(
        self, estimate: RequestEstimate, allowance: Allowance, among: Sequence[int]
    ) -> tuple[list[int], int | None]:
        """The columns in the policy's or the fallback's order, and the policy's own choice."""
        names, lam, cost = self._names, allowance.lam, self._costs.normalise(estimate.cost)
        if estimate.trusted_correctness is not None:
            # a spent budget leaves only the cheapest, whatever the policy does with lam
            policy = Lambda() if allowance.exhausted else self._policy
            order = policy_order(
                policy, estimate.trusted_correctness, cost, lam, names=names, among=among
            )
            return order, order[0]
        fallback = "cheapest" if allowance.exhausted else self._settings.routing.fallback
        order = fallback_order(
            fallback, self._policy, self._prior, cost, lam, names=names, among=among
        )
        p = estimate.correctness
        if p is None:
            return order, None
        return order, policy_order(self._policy, p, cost, lam, names=names, among=among)[0]

    def _outside_share(
        self,
        question: RoutingRequest,
        allowance: Allowance,
        among: Sequence[int],
        decision: str,
    ) -> int | None:
        """The column of the target for what isn't routed; None where this request is."""
        traffic = self._settings.traffic
        if traffic.otherwise is None or allowance.exhausted:
            return None
        rest = self._column[traffic.otherwise]
        routed = is_routed(traffic, session=question.session, decision=decision)
        return None if routed or rest not in among else rest

    def _order_ready(
        self,
        estimate: RequestEstimate,
        lam: float,
        order: list[int],
        waits: PredictedWaits | None,
        limited: Collection[int],
    ) -> list[int]:
        """The order by waiting and rate limits too."""

        def rank(p: PerTarget, dollars: PerTarget, among: list[int]) -> list[int]:
            costs = self._costs.normalise(estimate.cost + dollars)
            return policy_order(self._policy, p, costs, lam, names=self._names, among=among)

        return order_ready(order, estimate.trusted_correctness, self._names, waits, limited, rank)

    def _find_current(
        self,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
        winner: int,
        waits: PredictedWaits | None,
    ) -> tuple[int, PerTarget, Reason | None] | None:
        """The conversation's target, the costs with its cache, and why it is kept, if it is."""
        if question.opening:
            return None
        state = self._sessions.state(question.session, question.at)
        if state is None and question.holds_state:
            state = self._sessions.last_state(question.session)
        present = -1 if state is None else self._column.get(state.target, -1)
        if state is None or present not in among:
            return None
        seconds = float(self._costs.cache(question).seconds[present])
        cached = cached_tokens(state, at=question.at, seconds=seconds)
        tokens = estimate.tokens
        cost = self._costs.with_cache(
            question, estimate.cost, present, tokens=tokens, cached=cached
        )
        if question.holds_state and not allowance.exhausted:
            return present, cost, "state"
        if question.agent.is_ongoing and not allowance.exhausted:
            # a summary is read once: where another target is cheaper without a cache, it moves
            is_cheaper = cost[winner] < cost[present]
            moves = question.agent.kind == "compaction" and is_cheaper
            return present, cost, None if moves else "turn"
        keeps = self._keeps_present(estimate, cost, allowance, present, winner, waits)
        return present, cost, "session" if keeps else None

    def _keeps_present(
        self,
        estimate: RequestEstimate,
        cost: PerTarget,
        allowance: Allowance,
        present: int,
        winner: int,
        waits: PredictedWaits | None,
    ) -> bool:
        """Whether a conversation stays where it is, by its probabilities and costs."""
        p = estimate.trusted_correctness
        if p is None and not allowance.exhausted:
            return True  # no forecast favours a switch
        return keeps_target(
            np.zeros_like(cost) if p is None else p,
            cost if waits is None else cost + waiting_dollars(waits, self._names),
            allowance.lam,
            present=present,
            winner=winner,
            costs=self._costs,
            margin=0.0 if allowance.exhausted else self._settings.sessions.margin,
        )


def _append_rest(
    choice: TargetChoice, estimate: RequestEstimate, able: Sequence[int]
) -> TargetChoice:
    """The choice with the targets below a floor at its end, to be called if the others fail."""
    rest, p = [k for k in able if k not in choice.order], estimate.trusted_correctness
    if not rest or p is None:
        return choice
    return replace(choice, order=[*choice.order, *sorted(rest, key=lambda k: -p[k])])


def _put_first(column: int, order: list[int]) -> list[int]:
    return [column, *(k for k in order if k != column)]


_CLEAR = 1e-9


def policy_order(
    policy: Policy,
    correctness: PerTarget,
    cost: PerTarget,
    lam: float,
    *,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    """The columns of the targets that may answer, best first.

    A policy that names a target that may not answer ranks all targets, and those that may not
    answer are then dropped.

    Args:
        policy: The policy.
        correctness: Every target's probability of a correct answer.
        cost: Every target's normalised cost.
        lam: The policy's parameter.
        names: All targets.
        among: The columns of the targets that may answer.
    """
    columns = np.asarray(among, dtype=np.int64)
    order: list[int]
    p, c = correctness[columns][None, :], cost[columns][None, :]
    if isinstance(policy, Lambda):
        clear = _order_by_score(p, c, lam)
        if clear is not None:
            order = columns[clear].tolist()
            return order
    try:
        positions = policy.order(p, c, lam, targets=tuple(names[k] for k in among))[0]
        order = columns[positions].tolist()
        return order
    except ConfigError:
        if len(among) == len(names):
            raise
    allowed = set(among)
    everyone = policy.order(correctness[None, :], cost[None, :], lam, targets=names)[0]
    return [k for k in everyone.tolist() if k in allowed]


def _order_by_score(
    correctness: Float[NDArray[np.float64], "1 target"],
    cost: Float[NDArray[np.float64], "1 target"],
    lam: float,
) -> Int[NDArray[np.int64], " target"] | None:
    """The order by Equation 2; None where the first two are within rounding error.

    The exact path then decides; it takes 20 times as long.
    """
    order: Int[NDArray[np.int64], " target"] = rank(correctness, cost, lam)[0]
    if len(order) > 1:
        first, second = score(correctness, cost, lam)[0, order[:2]].tolist()
        if first - second <= _CLEAR * (1 + float(np.abs(cost).max())):
            return None
    return order


def check_fallback(fallback: str, names: tuple[str, ...]) -> None:
    """Check that a fallback is known.

    Raises:
        ConfigError: It is neither the name of a fallback nor a target.
    """
    if fallback not in FALLBACKS and fallback not in names:
        raise ConfigError(
            f"routing.fallback is {fallback!r}; it can be {', '.join(FALLBACKS)}, or one of "
            f"{list(names)}"
        )


def fallback_order(
    fallback: str,
    policy: Policy,
    prior: PerTarget | None,
    cost: PerTarget,
    lam: float,
    *,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    """The columns of the targets that may answer, best first, without a forecast.

    Args:
        fallback: `prior`, the policy applied to train accuracies; `best`, by train accuracy;
            `cheapest`; or a target, which comes before the order of `prior`. A target's name
            takes precedence.
        policy: The policy.
        prior: Every target's accuracy on the train rows. None where the router doesn't have it;
            the most expensive target then counts as the best.
        cost: Every target's normalised cost.
        lam: The policy's parameter.
        names: All targets.
        among: The columns of the targets that may answer.
    """
    if fallback in names:
        rest = _by_prior(policy, prior, cost, lam, names, among)
        return sorted(rest, key=lambda k: names[k] != fallback)
    if fallback == "cheapest":
        return sorted(among, key=lambda k: (cost[k], 0.0 if prior is None else -prior[k]))
    if fallback == "best":
        return _best(prior, cost, among)
    return _by_prior(policy, prior, cost, lam, names, among)


def _by_prior(
    policy: Policy,
    prior: PerTarget | None,
    cost: PerTarget,
    lam: float,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    if prior is None:
        return _best(prior, cost, among)
    return policy_order(policy, prior, cost, lam, names=names, among=among)


def _best(prior: PerTarget | None, cost: PerTarget, among: Sequence[int]) -> list[int]:
    if prior is None:
        return sorted(among, key=lambda k: -cost[k])
    return sorted(among, key=lambda k: (-prior[k], cost[k]))


def cached_tokens(state: SessionState, *, at: float, seconds: float) -> int:
    """Tokens that the current target's provider should still have cached, by its own count.

    Args:
        state: The conversation's last answer.
        at: The time, in seconds since 1970.
        seconds: For how long the provider's cache holds them.
    """
    return state.tokens if at - state.at <= seconds else 0


def keeps_target(
    correctness: PerTarget,
    cost: PerTarget,
    lam: float,
    *,
    present: int,
    winner: int,
    costs: CostScores,
    margin: float,
) -> bool:
    """Whether the current target is kept: the winner's gain in score is within the margin.

    With the policy `lambda` the winner has the best score of the others; with other policies it is
    the target that they would choose, and must be better by the same score.

    Args:
        correctness: Every target's probability of a correct answer.
        cost: Every target's estimated cost in US dollars, the current one's with its cache.
        lam: The trade-off.
        present: The column of the current target.
        winner: The column that the policy would choose with nothing cached.
        costs: The router's costs.
        margin: The gain in score that a switch must exceed.
    """
    if winner == present:
        return True
    scores = costs.scores(correctness, cost, lam)
    return bool(scores[winner] - scores[present] <= margin)
