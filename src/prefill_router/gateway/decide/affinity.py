"""Who holds a conversation, a tool loop or a stored response: the target that must answer next.

`Sessions` remembers of conversations who answered last, who called which tools, and who keeps which
responses. By it `Affinity` settles the target of a request, whatever anybody expects or wishes, and
`ResponseOwners` that of a call about a stored response: nobody else has the response.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, final

from prefill_router.data import Message
from prefill_router.gateway.decide.candidates import Candidates, Exclusion
from prefill_router.gateway.decide.refusals import (
    no_eligible_target,
    response_lost,
    response_of_another,
    stored_lost,
    stored_not_of_key,
    stored_unknown,
    unknown_response,
)
from prefill_router.gateway.records import RoutingRequest
from prefill_router.gateway.settings import SessionSettings
from prefill_router.gateway.types import Reason
from prefill_router.targets import Pool

_DIGITS = 32
_MOST_CALLS = 128
"""Tool calls of one answer that are remembered; the conversation itself is known besides."""
_Entry = TypeVar("_Entry")
_LONGEST_ID = 256
SessionRow = tuple[str | None, str, int, float, Sequence[str], str | None, str | None]
"""What a receipt says of an answer: the session, who answered, its tokens in and out, when it
ended (seconds since 1970), the ids of its tool calls, its own id where the target keeps it, and the
name of the client's key."""


def session_name(
    settings: SessionSettings,
    *,
    header: str | None,
    hint: str | None,
    key_turns: Iterable[Message],
    key: str | None,
) -> str | None:
    """What names a request's conversation: 32 hexadecimal digits, the same after a restart.

    The header alone names it. Without one its first turns do, together with the hint: clients send
    one `prompt_cache_key` for all that begins alike, so it can't stand alone.

    Args:
        settings: By what conversations are known.
        header: The session header.
        hint: What the body says of its session.
        key_turns: The turns up to the first user turn, which all later requests repeat.
        key: The name of the client's key: clients don't share conversations.
    """
    if settings.known_by == "none" or (settings.known_by == "header" and header is None):
        return None
    parts = ["header", header] if header is not None else ["turns", hint or ""]
    turns = [] if header is not None else [(turn.role, turn.content) for turn in key_turns]
    if header is None and not turns:
        return None
    digest = hashlib.sha256()
    for text in (key or "", *parts, *(text for turn in turns for text in turn)):
        read = text.encode("utf-8", "surrogatepass")
        digest.update(len(read).to_bytes(8, "big"))
        digest.update(read)
    return digest.hexdigest()[:_DIGITS]


@final
@dataclass(frozen=True, slots=True)
class SessionState:
    """Who holds a conversation.

    Attributes:
        target: Who answered last.
        tokens: Tokens of that turn, in and out, in the target's own: what its cache may hold.
        at: When, seconds since 1970.
    """

    target: str
    tokens: int
    at: float


@final
class _LatestEntries(Generic[_Entry]):
    """The last entries that were put in, at most so many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def put(self, name: Hashable, value: _Entry) -> None:
        self.entries[name] = value
        self.entries.move_to_end(name)
        self.shrink()

    def shrink(self) -> None:
        while len(self.entries) > self.most:
            self.entries.popitem(last=False)


@final
class Sessions:
    """What is remembered of conversations, in the memory of the gateway's process.

    It outlives reloads. A conversation that was silent for longer than the settings say counts as
    forgotten. Tool calls and stored responses don't go by time, since somebody may be asked before
    a tool runs, and providers keep responses for weeks; of them too, only so many are remembered.

    What one key's clients were answered never steers those of another one. Some targets count the
    ids of their tool calls anew in each conversation, so these go by the conversation first.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._seats: _LatestEntries[SessionState] = _LatestEntries(settings.most)
        self._calls: _LatestEntries[str] = _LatestEntries(settings.most)  # by session and id
        self._loose_calls: _LatestEntries[str] = _LatestEntries(settings.most)  # by key and id
        self._responses: _LatestEntries[tuple[str, str | None]] = _LatestEntries(settings.most)

    def __len__(self) -> int:
        return len(self._seats.entries)

    def use(self, settings: SessionSettings) -> None:
        """Go on with other settings, after a reload."""
        self._settings = settings
        for recent in (self._seats, self._calls, self._loose_calls, self._responses):
            recent.most = settings.most
            recent.shrink()

    def seat(self, session: str | None, at: float) -> SessionState | None:
        """Who holds a conversation, at a time; None where nobody is remembered."""
        seat = None if session is None else self._seats.entries.get(session)
        return None if seat is None or at - seat.at > self._settings.seconds else seat

    def caller(
        self, tool_call_ids: Sequence[str], *, session: str | None, key: str | None
    ) -> str | None:
        """The target that called tools; None where that isn't remembered.

        Args:
            tool_call_ids: The calls.
            session: What names the conversation.
            key: The name of the client's key; None where none is asked for.
        """
        places = [(self._loose_calls, key)]
        if session is not None:
            places.insert(0, (self._calls, session))
        known = (
            recent.entries.get((scope, call)) for recent, scope in places for call in tool_call_ids
        )
        return next((target for target in known if target is not None), None)

    def keeper(self, response_id: str, *, key: str | None) -> str | None:
        """The target that keeps a stored response of this key's; None where none is remembered."""
        target, owner = self._responses.entries.get(response_id, (None, None))
        return target if owner in (None, key) else None

    def keep(self, response_id: str, *, target: str, key: str | None) -> None:
        """Remember who keeps a response, and the key that it was given to."""
        if len(response_id) <= _LONGEST_ID:
            self._responses.put(response_id, (target, key))

    def owned(self, response_id: str, *, key: str | None) -> str | None:
        """As `keeper`, and only where it was given to this very key."""
        target, owner = self._responses.entries.get(response_id, (None, None))
        return target if owner == key else None

    def is_anothers(self, response_id: str, *, key: str | None) -> bool:
        """Whether a stored response is known to be that of another key."""
        _, owner = self._responses.entries.get(response_id, (None, None))
        return owner not in (None, key)

    def answered(
        self,
        session: str | None,
        *,
        target: str,
        tokens: int,
        at: float,
        tool_calls: Sequence[str] = (),
        response_id: str | None = None,
        key: str | None = None,
    ) -> None:
        """Remember an answer.

        Args:
            session: What names the conversation; None where nothing does.
            target: Who answered.
            tokens: Of the turn, in and out, in the target's own.
            at: When the answer ended, seconds since 1970.
            tool_calls: The ids of the answer's tool calls.
            response_id: The answer's own id, where the target keeps it.
            key: The name of the client's key; None where none is asked for.
        """
        if session is not None:
            self._seats.put(session, SessionState(target, tokens, at))
            oldest = next(iter(self._seats.entries))  # for one that comes, a forgotten one goes
            if at - self._seats.entries[oldest].at > self._settings.seconds:
                del self._seats.entries[oldest]
        for call in tool_calls[:_MOST_CALLS]:
            if len(call) <= _LONGEST_ID:
                self._loose_calls.put((key, call), target)
                if session is not None:
                    self._calls.put((session, call), target)
        if response_id is not None:
            self.keep(response_id, target=target, key=key)

    def restore(self, rows: Iterable[SessionRow]) -> None:
        """Remember what receipts tell, oldest first."""
        for session, target, tokens, at, tool_calls, response_id, key in rows:
            self.answered(
                session,
                target=target,
                tokens=tokens,
                at=at,
                tool_calls=tool_calls,
                response_id=response_id,
                key=key,
            )


@final
class Affinity:
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

    def check_owner(self, question: RoutingRequest) -> None:
        """Check that a stored response is gone on from by the key that it was given to alone.

        Raises:
            RefusalError: It is another key's.
        """
        response = question.previous_response_id
        if response is not None and self._sessions.is_anothers(response, key=question.key):
            raise response_of_another()

    def holder(
        self, question: RoutingRequest, cannot: Mapping[str, Exclusion]
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
        caller = self.caller(question, cannot) if question.in_tool_loop else None
        return None if caller is None else (caller, "tool_loop")

    def _keeper(
        self, question: RoutingRequest, response: str, cannot: Mapping[str, Exclusion]
    ) -> str:
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

    def caller(self, question: RoutingRequest, cannot: Mapping[str, Exclusion]) -> str | None:
        """Who called the tools whose results a request brings, if it can go on; None for nobody.

        That it can be called with tools, whatever the pool file says, was seen.
        """
        caller = self._sessions.caller(
            question.tool_call_ids, session=question.session, key=question.key
        )
        if caller is None:
            seat = self._sessions.seat(question.session, question.at)
            caller = None if seat is None else seat.target
        elif caller in cannot and cannot[caller].obstacle == "need":
            without = replace(question, needs=question.needs - {"tools"})
            cannot = self._candidates.cannot(without, 0)
        return caller if caller in self._names and caller not in cannot else None


@final
class ResponseOwners:
    """Who keeps stored responses.

    Args:
        pool: All that can be asked.
        sessions: What is remembered of responses.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self._names = pool.names
        self._candidates = Candidates(pool)
        self._sessions = sessions

    def keeper(self, response: str, question: RoutingRequest) -> str:
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
