"""The free choice among the targets that may answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.gateway.deciding.budgets import Allowance
from prefill_router.gateway.deciding.costs import PerTarget, Scoring
from prefill_router.gateway.deciding.fallback import fallback_order
from prefill_router.gateway.deciding.known import Known
from prefill_router.gateway.deciding.ordering import ordered
from prefill_router.gateway.deciding.question import Question
from prefill_router.gateway.deciding.sessions import Sessions
from prefill_router.gateway.deciding.staying import cached_tokens, stays
from prefill_router.gateway.deciding.traffic import is_routed
from prefill_router.gateway.settings import Settings
from prefill_router.gateway.words import Reason
from prefill_router.policy import Lambda, Policy


@final
@dataclass(frozen=True, eq=False)
class Chosen:
    """Whom the free choice fell on.

    Attributes:
        order: The columns of those that may answer, the chosen one first.
        reason: Why it is the first.
        winner: The column of whom the policy alone would choose; None without a forecast.
        cost: Every target's estimated cost, with what the present one has cached, US dollars.
    """

    order: list[int]
    reason: Reason
    winner: int | None
    cost: PerTarget


@final
class Chooser:
    """Chooses by the policy, the fallback, the share of traffic, and who holds the conversation.

    Args:
        names: The pool's targets.
        policy: Who answers.
        costs: The router's costs.
        prior: Every target's share of correct answers on the train rows; None where unknown, as it
            is where one isn't finite.
        settings: The gateway's.
        sessions: What is remembered of conversations.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        policy: Policy,
        costs: Scoring,
        prior: PerTarget | None,
        *,
        settings: Settings,
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
        question: Question,
        known: Known,
        allowance: Allowance,
        among: Sequence[int],
        *,
        decision: str,
    ) -> Chosen:
        """Choose for one request.

        Args:
            question: The request.
            known: What is known of it.
            allowance: The trade-off.
            among: The columns of those that may answer, at least one.
            decision: The decision's name.
        """
        order = self._order(known, allowance, among)
        winner = self._winner(known, allowance, among, order)
        rest = self._otherwise(question, decision)
        if rest in among and not allowance.exhausted:
            return Chosen(_first(rest, order), "share", winner, known.cost)
        kept = self._kept(question, known, allowance, among, order[0])
        if kept is not None:
            present, cost, keeps = kept
            if keeps and present != order[0]:
                return Chosen(_first(present, order), "session", winner, cost)
            return Chosen(order, _reason(known), winner, cost)
        return Chosen(order, _reason(known), winner, known.cost)

    def _order(self, known: Known, allowance: Allowance, among: Sequence[int]) -> list[int]:
        cost = self._costs.normalise(known.cost)
        trusted, lam = known.trusted, allowance.lam
        if trusted is not None:
            # A spent budget leaves the cheapest, whatever the policy makes of its parameter.
            policy = Lambda() if allowance.exhausted else self._policy
            return ordered(policy, trusted, cost, lam, names=self._names, among=among)
        fallback = "cheapest" if allowance.exhausted else self._settings.routing.fallback
        return fallback_order(
            fallback, self._policy, self._prior, cost, lam, names=self._names, among=among
        )

    def _winner(
        self, known: Known, allowance: Allowance, among: Sequence[int], order: list[int]
    ) -> int | None:
        if known.correctness is None or known.trusted is not None:
            return None if known.correctness is None else order[0]
        cost = self._costs.normalise(known.cost)
        p, lam = known.correctness, allowance.lam
        return ordered(self._policy, p, cost, lam, names=self._names, among=among)[0]

    def _otherwise(self, question: Question, decision: str) -> int:
        """The column of the target of the rest, where the request is of the rest; else -1."""
        traffic = self._settings.traffic
        if is_routed(traffic, session=question.session, decision=decision):
            return -1
        return -1 if traffic.otherwise is None else self._column[traffic.otherwise]

    def _kept(
        self,
        question: Question,
        known: Known,
        allowance: Allowance,
        among: Sequence[int],
        winner: int,
    ) -> tuple[int, PerTarget, bool] | None:
        """Who holds the conversation, the costs with its cache, and whether it is kept."""
        if question.opening:
            return None
        seat = self._sessions.seat(question.session, question.at)
        present = -1 if seat is None else self._column.get(seat.target, -1)
        if seat is None or present not in among:
            return None
        sessions = self._settings.sessions
        cached = cached_tokens(seat, at=question.at, settings=sessions)
        cost = self._costs.with_cache(known.cost, present, tokens=known.tokens, cached=cached)
        p = known.trusted
        if p is None and not allowance.exhausted:
            return present, cost, True  # nothing speaks for a switch
        keeps = stays(
            np.zeros_like(cost) if p is None else p,
            cost,
            allowance.lam,
            present=present,
            winner=winner,
            costs=self._costs,
            margin=0.0 if allowance.exhausted else sessions.margin,
        )
        return present, cost, keeps


def _reason(known: Known) -> Reason:
    return "policy" if known.fallback is None else "fallback"


def _first(column: int, order: list[int]) -> list[int]:
    return [column, *(k for k in order if k != column)]
