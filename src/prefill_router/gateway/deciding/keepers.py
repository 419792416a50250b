"""Which target a call about a stored response goes to: nobody else has the response."""

from typing import final

from prefill_router.gateway.deciding.eligible import Candidates
from prefill_router.gateway.deciding.question import Question
from prefill_router.gateway.deciding.refusing import (
    no_eligible_target,
    stored_lost,
    stored_not_of_key,
    stored_unknown,
)
from prefill_router.gateway.deciding.sessions import Sessions
from prefill_router.targets import Pool


@final
class Keepers:
    """Who keeps stored responses.

    Args:
        pool: All that can be asked.
        sessions: What is remembered of responses.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self._names = pool.names
        self._candidates = Candidates(pool)
        self._sessions = sessions

    def keeper(self, response: str, question: Question) -> str:
        """The target that keeps a response.

        Where keys are asked for, a response that isn't known to be the key's own is nobody's: who
        guesses an id, or was told one, gets nothing. Without keys, one that isn't remembered can
        only be with the target that serves responses, where there is but one.

        Args:
            response: Its id.
            question: Who asks, and which targets may be asked.

        Raises:
            RefusalError: 404, it isn't known, or not the key's; its target isn't there any more.
        """
        key = question.key
        cannot = self._candidates.cannot(question, 0)
        target = self._sessions.owned(response, key=key)
        if target is not None:
            if target in self._names and target not in cannot:
                return target
            why = cannot[target].words if target in cannot else "it isn't in the pool any more"
            raise stored_lost(target, why)
        if key is not None or self._sessions.is_anothers(response, key=None):
            raise stored_not_of_key()
        excluded = self._candidates.unwanted(question, None, cannot)
        serving = [self._names[k] for k in self._candidates.left(excluded)]
        if not serving:
            raise no_eligible_target(question, excluded)
        if len(serving) > 1:
            raise stored_unknown(serving)
        return serving[0]
