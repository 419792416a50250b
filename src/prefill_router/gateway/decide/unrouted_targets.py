"""Targets that the pool has and the router doesn't know: they answer where nothing is to choose."""

from collections.abc import Collection
from typing import final

import numpy as np

from prefill_router.gateway.decide.affinity import Sessions, without_tools
from prefill_router.gateway.decide.budgets import Allowance
from prefill_router.gateway.decide.eligibility import (
    Candidates,
    named_cannot,
    response_lost,
    written_tokens,
)
from prefill_router.gateway.decide.routing_request import RoutingRequest, request_tokens
from prefill_router.gateway.records import RoutingDecision
from prefill_router.gateway.types import Reason
from prefill_router.targets import Pool

_MILLION = 1e6


@final
class UnroutedTargets:
    """Targets that only a name leads to, or an answer that they gave before.

    Args:
        pool: All that can be asked.
        routed: The targets that the router knows.
        sessions: What is remembered of conversations.
    """

    def __init__(self, pool: Pool, routed: Collection[str], sessions: Sessions) -> None:
        names = [name for name in pool.names if name not in routed]
        self._targets = {name: pool[name] for name in names}
        self._candidates = Candidates(pool.select(names)) if names else None
        self._sessions = sessions

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in the pool's order."""
        return tuple(self._targets)

    def settles(self, question: RoutingRequest) -> bool:
        """Whether one of them must answer."""
        return self._settled(question) is not None

    def serving(self, question: RoutingRequest) -> list[str]:
        """Those that could answer, were they named."""
        cannot = self._cannot(question)
        return [name for name in self._targets if name not in cannot]

    def choice(
        self, decision: str, question: RoutingRequest, allowance: Allowance, *, asked: float
    ) -> RoutingDecision | None:
        """The choice of the one that must answer; None where none of them must.

        Args:
            decision: The decision's name.
            question: The request.
            allowance: The trade-off.
            asked: The same before budgets.

        Raises:
            RefusalError: It doesn't serve this call, is too dear, or the key may not use it.
        """
        settled = self._settled(question)
        if settled is None:
            return None
        name, reason = settled
        tokens = request_tokens(question, None)
        cost = self._cost(name, question, tokens)
        self._check(name, reason, question, cost)
        is_named = reason == "named"
        return RoutingDecision(
            id=decision,
            order=(name,),
            reason=reason,
            lam=None if is_named else allowance.lam,
            lam_asked=None if is_named else asked,
            estimated_cost={} if cost is None else {name: cost},
            input_tokens=tokens,
            session=question.session,
            tool_loop=question.in_tool_loop,
        )

    def _settled(self, question: RoutingRequest) -> tuple[str, Reason] | None:
        """Who must answer, and why: as with the router's own targets."""
        if not self._targets:
            return None
        if question.named is not None:
            return self._known(question.named, "named")
        if question.previous_response_id is not None:
            keeper = self._sessions.keeper(question.previous_response_id, key=question.key)
            return self._known(keeper, "stored")
        if not question.in_tool_loop:
            return None
        caller = self._sessions.caller(
            question.tool_call_ids, session=question.session, key=question.key
        )
        if caller is None:
            seat = self._sessions.seat(question.session, question.at)
            caller = None if seat is None else seat.target
        else:
            question = without_tools(question)
        return None if caller in self._cannot(question) else self._known(caller, "tool_loop")

    def _cost(self, name: str, question: RoutingRequest, tokens: int) -> float | None:
        """What one is expected to cost, US dollars; None where its prices are unknown.

        Nobody knows how long its answers are: the client's limit is taken, or a common length.
        """
        target = self._targets[name]
        if target.input_price is None or target.output_price is None:
            return None
        written = written_tokens(question)
        return (tokens * target.input_price + written * target.output_price) / _MILLION

    def _check(
        self, name: str, reason: Reason, question: RoutingRequest, cost: float | None
    ) -> None:
        if self._candidates is None:
            return
        costs = None if cost is None else np.full(len(self._targets), cost)
        why = self._candidates.unusable(question, costs, name)
        if why is not None and reason == "stored":
            raise response_lost(name, why.words)
        if why is not None:
            raise named_cannot(question, name, why)

    def _cannot(self, question: RoutingRequest) -> Collection[str]:
        return () if self._candidates is None else self._candidates.cannot(question, 0)

    def _known(self, name: str | None, reason: Reason) -> tuple[str, Reason] | None:
        return (name, reason) if name in self._targets else None
