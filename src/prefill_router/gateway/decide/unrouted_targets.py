"""Targets in the pool that the router doesn't know: they answer where the target is fixed."""

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
    """Targets that answer only where they are named, or to continue their own earlier answer.

    Args:
        pool: These targets, at least one.
        sessions: What is remembered of conversations.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self.names = pool.names
        self._targets = {target.name: target for target in pool}
        self._candidates = Candidates(pool)
        self._affinity = Affinity(pool.names, self._candidates, sessions)
        self._sessions = sessions

    def serving(self, question: RoutingRequest) -> list[str]:
        """The targets that could answer if they were named."""
        cannot = self._candidates.cannot(question, 0)
        unwanted = self._candidates.unwanted(question, None, cannot)
        return [name for name in self.names if name not in unwanted]

    def settled(self, question: RoutingRequest) -> tuple[str, Reason] | None:
        """The one of them that must answer, or its endpoint, and why; None where none must."""
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
        known = name is not None and self._candidates.target_of(name) in self._targets
        return (name, reason) if known and name is not None else None

    def choice(
        self,
        decision: str,
        question: RoutingRequest,
        allowance: Allowance,
        *,
        asked: float,
        settled: tuple[str, Reason],
    ) -> RoutingDecision:
        """The decision for the target that must answer.

        Args:
            decision: The decision's id.
            question: The request.
            allowance: The trade-off after budgets.
            asked: The trade-off before budgets.
            settled: The target that must answer, and why.

        Raises:
            RefusalError: It doesn't serve this endpoint, is too expensive, or isn't allowed for
                the key.
        """
        deployment, reason = settled
        name = self._candidates.target_of(deployment)
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
            deployment=None if name == deployment else deployment,
        )

    def _cost(self, name: str, question: RoutingRequest, tokens: int) -> float | None:
        """The expected cost in US dollars; None where the target's prices are unknown.

        The length of its answers is unknown: the client's limit is assumed, or a default length.
        """
        target = self._targets[name]
        if target.input_price is None or target.output_price is None:
            return None
        written = written_tokens(question)
        return (tokens * target.input_price + written * target.output_price) / _MILLION
