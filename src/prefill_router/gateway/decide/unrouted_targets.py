"""Targets that the pool has and the router doesn't know: they answer where nothing is to choose."""

from typing import final

import numpy as np

from prefill_router.gateway.decide.affinity import Affinity, Sessions
from prefill_router.gateway.decide.budgets import Allowance
from prefill_router.gateway.decide.candidates import (
    Candidates,
    request_tokens,
    written_tokens,
)
from prefill_router.gateway.decide.refusals import named_cannot, response_lost
from prefill_router.gateway.records import RoutingDecision, RoutingRequest
from prefill_router.gateway.types import Reason
from prefill_router.targets import Pool

_MILLION = 1e6


@final
class UnroutedTargets:
    """Targets that only a name leads to, or an answer that they gave before.

    Args:
        pool: They, at least one.
        sessions: What is remembered of conversations.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self.names = pool.names
        self._targets = {target.name: target for target in pool}
        self._candidates = Candidates(pool)
        self._affinity = Affinity(pool.names, self._candidates, sessions)
        self._sessions = sessions

    def serving(self, question: RoutingRequest) -> list[str]:
        """Those that could answer, were they named."""
        cannot = self._candidates.cannot(question, 0)
        return [name for name in self.names if name not in cannot]

    def settled(self, question: RoutingRequest) -> tuple[str, Reason] | None:
        """The one that must answer, and why: as with the router's own targets; None for nobody."""
        name: str | None
        reason: Reason
        if question.named is not None:
            name, reason = question.named, "named"
        elif question.previous_response_id is not None:
            response = question.previous_response_id
            name, reason = self._sessions.keeper(response, key=question.key), "stored"
        elif question.in_tool_loop:
            cannot = self._candidates.cannot(question, 0)
            name, reason = self._affinity.caller(question, cannot), "tool_loop"
        else:
            return None
        return None if name is None or name not in self._targets else (name, reason)

    def choice(
        self,
        decision: str,
        question: RoutingRequest,
        allowance: Allowance,
        *,
        asked: float,
        settled: tuple[str, Reason],
    ) -> RoutingDecision:
        """The choice of the one that must answer.

        Args:
            decision: The decision's name.
            question: The request.
            allowance: The trade-off.
            asked: The same before budgets.
            settled: Who must answer, and why.

        Raises:
            RefusalError: It doesn't serve this call, is too dear, or the key may not use it.
        """
        name, reason = settled
        tokens = request_tokens(question, None)
        cost = self._cost(name, question, tokens)
        costs = None if cost is None else np.full(len(self.names), cost)
        why = self._candidates.unusable(question, costs, name)
        if why is not None:
            by_name = named_cannot(question, name, why)
            raise response_lost(name, why.words) if reason == "stored" else by_name
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

    def _cost(self, name: str, question: RoutingRequest, tokens: int) -> float | None:
        """What one is expected to cost, US dollars; None where its prices are unknown.

        Nobody knows how long its answers are: the client's limit is taken, or a common length.
        """
        target = self._targets[name]
        if target.input_price is None or target.output_price is None:
            return None
        written = written_tokens(question)
        return (tokens * target.input_price + written * target.output_price) / _MILLION
