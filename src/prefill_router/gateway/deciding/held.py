"""Requests whose target is settled by what went before, whatever anybody expects or wishes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from prefill_router.gateway.deciding.eligible import Candidates, Excluded
from prefill_router.gateway.deciding.question import Question
from prefill_router.gateway.deciding.refusing import (
    no_eligible_target,
    response_lost,
    response_of_another,
    unknown_response,
)
from prefill_router.gateway.deciding.sessions import Sessions
from prefill_router.gateway.words import Reason


def without_tools(question: Question) -> Question:
    """The same for who called the tools: that it can, whatever the pool file says, is seen."""
    return replace(question, needs=question.needs - {"tools"})


@final
class Holders:
    """Who must answer: the target that keeps a stored response, or that called tools.

    Args:
        names: The pool's targets.
        candidates: The same, with what they can do.
        sessions: What is remembered of conversations.
    """

    def __init__(self, names: tuple[str, ...], candidates: Candidates, sessions: Sessions) -> None:
        self._names = names
        self._candidates = candidates
        self._sessions = sessions

    def check_owner(self, question: Question) -> None:
        """Check that a stored response is gone on from by the key that it was given to alone.

        Raises:
            RefusalError: It is another key's.
        """
        response = question.previous_response_id
        if response is not None and self._sessions.is_anothers(response, key=question.key):
            raise response_of_another()

    def holder(
        self, question: Question, cannot: Mapping[str, Excluded]
    ) -> tuple[str, Reason] | None:
        """Who must answer, and why; None for nobody.

        Args:
            question: The request.
            cannot: The targets that can't answer, or that the client's key may not use.

        Raises:
            RefusalError: Who keeps the response isn't known, or can't answer.
        """
        if question.previous_response_id is not None:
            return self._keeper(question, question.previous_response_id, cannot), "stored"
        caller = self._caller(question, cannot) if question.in_tool_loop else None
        return None if caller is None else (caller, "tool_loop")

    def _keeper(self, question: Question, response: str, cannot: Mapping[str, Excluded]) -> str:
        keeper = self._sessions.keeper(response, key=question.key)
        if keeper is not None:
            if keeper in self._names and keeper not in cannot:
                return keeper
            why = cannot[keeper].words if keeper in cannot else "it isn't in the pool any more"
            raise response_lost(keeper, why)
        serving = [self._names[k] for k in self._candidates.left(cannot)]
        if not serving:
            raise no_eligible_target(question, cannot)
        if len(serving) > 1:
            raise unknown_response(serving)
        return serving[0]

    def _caller(self, question: Question, cannot: Mapping[str, Excluded]) -> str | None:
        caller = self._sessions.caller(
            question.tool_call_ids, session=question.session, key=question.key
        )
        if caller is None:
            seat = self._sessions.seat(question.session, question.at)
            caller = None if seat is None else seat.target
        elif caller in cannot and cannot[caller].obstacle == "need":
            cannot = self._candidates.cannot(without_tools(question), 0)
        return caller if caller in self._names and caller not in cannot else None
