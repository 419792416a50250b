"""Which target has a conversation, a tool loop or a stored response, and so answers next.

`Sessions` remembers which target answered a conversation last, called which tools, and keeps which
responses. From that, `Affinity` fixes the target of a request in a tool loop or after a stored
response, whatever the forecast or the client prefers. `ResponseOwners` fixes the target of a call
about a stored response.

A share of the traffic is routed: whole conversations, and always the same ones, by the
conversation's name or else the decision's id. Decision ids grow with time, so that they sort
receipts by time.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar, final

from prefill_router.data import Message
from prefill_router.targets import Pool
from prefill_router_gateway.decide.candidates import (
    Candidates,
    Exclusion,
    no_eligible_target,
    request_tokens,
    response_lost,
    response_of_another,
    stored_lost,
    stored_not_of_key,
    stored_unknown,
    unknown_response,
)
from prefill_router_gateway.records import Reason, RoutingRequest
from prefill_router_gateway.settings import SessionSettings, TrafficSettings

_DIGITS = 32
_MOST_CALLS = 128
"""The most tool calls of one answer that are remembered."""
_Entry = TypeVar("_Entry")
_LONGEST_ID = 256
AffinityKind = Literal["session", "call", "key_call", "response"]
AffinityPlace = tuple[AffinityKind, Hashable]
"""The kind of an entry of `Sessions`, and its name there."""
SessionRow = tuple[str | None, str, int, float, Sequence[str], str | None, str | None, str | None]
"""An answer as its receipt has it: the session, the target, its input and output tokens together,
and when it ended (seconds since 1970). Then the ids of its tool calls, its own id where the target
keeps it, and the name of the client's key. Last, which of the target's endpoints answered, if it
has several."""


def session_name(
    settings: SessionSettings,
    *,
    header: str | None,
    hint: str | None,
    key_turns: Iterable[Message],
    key: str | None,
    conversation: str | None = None,
) -> str | None:
    """The name of a request's conversation: 32 hexadecimal digits, the same after a restart.

    It is derived from the header alone, or without one from the name that a coding agent gives it,
    or else from the first turns and the hint: clients send the same `prompt_cache_key` for all
    conversations that begin alike, so the hint alone isn't enough.

    Args:
        settings: How conversations are recognised.
        header: The session header.
        hint: The session field of the body.
        key_turns: The turns up to the first user turn, which all later requests repeat.
        key: The name of the client's key, since clients don't share conversations.
        conversation: The agent's name of the conversation; None where it gives none.
    """
    if settings.known_by == "none" or (settings.known_by == "header" and header is None):
        return None
    turns: list[tuple[str, str]] = []
    if header is not None:
        parts = ["header", header]
    elif conversation is not None:
        parts = ["agent", conversation]
    else:
        parts, turns = ["turns", hint or ""], [(turn.role, turn.content) for turn in key_turns]
        if not turns:
            return None
    digest = hashlib.sha256()
    for text in (key or "", *parts, *(text for turn in turns for text in turn)):
        read = text.encode("utf-8", "surrogatepass")
        digest.update(len(read).to_bytes(8, "big"))
        digest.update(read)
    return digest.hexdigest()[:_DIGITS]


def affinity_places(question: RoutingRequest) -> list[AffinityPlace]:
    """The entries of `Sessions` that the decision about a request may need."""
    session, response = question.session, question.previous_response_id
    places: list[AffinityPlace] = []
    if session is not None and not (question.opening and not question.in_tool_loop):
        places.append(("session", session))
    for call in question.tool_call_ids[:_MOST_CALLS] if question.in_tool_loop else ():
        places.append(("key_call", (question.key, call)))
        if session is not None:
            places.append(("call", (session, call)))
    return places if response is None else [*places, ("response", response)]


@final
@dataclass(frozen=True, slots=True)
class SessionState:
    """The last answer of a conversation.

    Attributes:
        target: The target that answered last.
        tokens: Input and output tokens of that turn, by the target's count: what its cache may
            hold.
        at: When it answered, in seconds since 1970.
        is_escalated: Whether the task that it was about has gone to a stronger target.
    """

    target: str
    tokens: int
    at: float
    is_escalated: bool = False


@final
class _LatestEntries(Generic[_Entry]):
    """The `most` entries that were added last."""

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
    """What the gateway remembers of conversations, in its process's memory.

    It survives reloads. A conversation expires after `settings.seconds` without an answer, unless
    it has state that only its target can read. Tool calls and stored responses don't expire, since
    a tool may wait for a person, and providers keep responses for weeks. Of each, the last
    `settings.most` are remembered.

    Answers to one key's clients never affect those of another key. Some targets restart the ids of
    their tool calls in each conversation, so these are looked up by conversation first.

    Attributes:
        settings: The current settings.
        on_entry: Called with each new entry, where replicas share them.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self._states: _LatestEntries[SessionState] = _LatestEntries(settings.most)
        self._calls: _LatestEntries[str] = _LatestEntries(settings.most)  # by session and id
        self._loose_calls: _LatestEntries[str] = _LatestEntries(settings.most)  # by key and id
        self._responses: _LatestEntries[tuple[str, str | None]] = _LatestEntries(settings.most)
        self._kinds: Mapping[AffinityKind, _LatestEntries[Any]] = {
            "session": self._states,
            "call": self._calls,
            "key_call": self._loose_calls,
            "response": self._responses,
        }
        self.on_entry: Callable[[AffinityPlace, Any], object] = lambda *_: None

    def __len__(self) -> int:
        return len(self._states.entries)

    def use(self, settings: SessionSettings) -> None:
        """Use other settings, after a reload."""
        self.settings = settings
        for recent in (self._states, self._calls, self._loose_calls, self._responses):
            recent.most = settings.most
            recent.shrink()

    def state(self, session: str | None, at: float) -> SessionState | None:
        """The last answer of a conversation; None where it is unknown or expired at this time."""
        state = self.last_state(session)
        return None if state is None or at - state.at > self.settings.seconds else state

    def last_state(self, session: str | None) -> SessionState | None:
        """The last answer of a conversation, expired or not; None where it is unknown."""
        return None if session is None else self._states.entries.get(session)

    def caller(
        self, tool_call_ids: Sequence[str], *, session: str | None, key: str | None
    ) -> str | None:
        """The target that made these tool calls; None where it isn't remembered.

        Args:
            tool_call_ids: The ids of the calls.
            session: The name of the conversation.
            key: The name of the client's key; None where the gateway has no keys.
        """
        places = [(self._loose_calls, key)]
        if session is not None:
            places.insert(0, (self._calls, session))
        targets = (
            recent.entries.get((scope, call)) for recent, scope in places for call in tool_call_ids
        )
        return next((target for target in targets if target is not None), None)

    def keeper(self, response_id: str, *, key: str | None) -> str | None:
        """The target that keeps a stored response of this key; None where it isn't remembered."""
        target, owner = self._responses.entries.get(response_id, (None, None))
        return target if owner in (None, key) else None

    def keep(self, response_id: str, *, target: str, key: str | None) -> None:
        """Remember which target keeps a response, and the key that received it."""
        if len(response_id) <= _LONGEST_ID:
            self._put("response", response_id, (target, key))

    def find_owned(self, response_id: str, *, key: str | None) -> str | None:
        """As `keeper`, but only where this very key received the response."""
        target, owner = self._responses.entries.get(response_id, (None, None))
        return target if owner == key else None

    def is_anothers(self, response_id: str, *, key: str | None) -> bool:
        """Whether a stored response is known to belong to another key."""
        _, owner = self._responses.entries.get(response_id, (None, None))
        return owner not in (None, key)

    def record_answer(
        self,
        session: str | None,
        *,
        target: str,
        tokens: int,
        at: float,
        tool_calls: Sequence[str] = (),
        response_id: str | None = None,
        key: str | None = None,
        deployment: str | None = None,
        is_escalated: bool = False,
    ) -> None:
        """Remember an answer.

        Args:
            session: The name of the conversation; None where it has none.
            target: The target that answered.
            tokens: Input and output tokens of the turn, by the target's count.
            at: When the answer ended, in seconds since 1970.
            tool_calls: The ids of the answer's tool calls.
            response_id: The answer's own id, where the target keeps it.
            key: The name of the client's key; None where the gateway has no keys.
            deployment: Which of the target's endpoints answered, if it has several: tool calls and
                the response belong to it.
            is_escalated: Whether its task has gone to a stronger target.
        """
        if session is not None:
            self._put("session", session, SessionState(target, tokens, at, is_escalated))
        for call in tool_calls[:_MOST_CALLS]:
            if len(call) <= _LONGEST_ID:
                self._put("key_call", (key, call), deployment or target)
                if session is not None:
                    self._put("call", (session, call), deployment or target)
        if response_id is not None:
            self.keep(response_id, target=deployment or target, key=key)

    def learn(self, place: AffinityPlace, value: Any) -> None:
        """Remember an entry of another replica."""
        kind, name = place
        self._kinds[kind].put(name, value)

    def _put(self, kind: AffinityKind, name: Hashable, value: Any) -> None:
        self._kinds[kind].put(name, value)
        self.on_entry((kind, name), value)

    def restore(self, rows: Iterable[SessionRow]) -> None:
        """Remember the answers in receipts, oldest first."""
        for session, target, tokens, at, tool_calls, response_id, key, deployment in rows:
            self.record_answer(
                session,
                target=target,
                tokens=tokens,
                at=at,
                tool_calls=tool_calls,
                response_id=response_id,
                key=key,
                deployment=deployment,
            )


@final
class Affinity:
    """Finds the target that must answer: it keeps the stored response, or called the tools.

    Of a target with several endpoints, what it finds is the endpoint (`large@east`) if it knows it.

    Args:
        names: The pool's targets.
        candidates: The same targets, with their capabilities.
        sessions: What is remembered of conversations.
    """

    def __init__(self, names: tuple[str, ...], candidates: Candidates, sessions: Sessions) -> None:
        self._names = names
        self._candidates = candidates
        self._sessions = sessions

    def check_owner(self, question: RoutingRequest) -> None:
        """Check that a stored response is continued only by the key that received it.

        Raises:
            RefusalError: It belongs to another key.
        """
        response = question.previous_response_id
        if response is not None and self._sessions.is_anothers(response, key=question.key):
            raise response_of_another()

    def holder(
        self, question: RoutingRequest, unable: Mapping[str, Exclusion]
    ) -> tuple[str, Reason] | None:
        """The target that must answer, and why; None where the choice is free.

        Args:
            question: The request.
            unable: The targets that can't answer, or that the client's key may not use.

        Raises:
            RefusalError: The target that keeps the response is unknown, or can't answer.
        """
        if question.previous_response_id is not None:
            return self._keeper(question, question.previous_response_id, unable), "stored"
        caller = self.caller(question, unable) if question.in_tool_loop else None
        return None if caller is None else (caller, "tool_loop")

    def _keeper(
        self, question: RoutingRequest, response: str, unable: Mapping[str, Exclusion]
    ) -> str:
        keeper = self._sessions.keeper(response, key=question.key)
        if keeper is not None:
            target = self._candidates.target_of(keeper)
            if target in self._names and target not in unable:
                return keeper
            why = unable[target].words if target in unable else "it is no longer in the pool"
            raise response_lost(keeper, why)
        serving = [self._names[k] for k in self._candidates.columns_left(unable)]
        if not serving:
            raise no_eligible_target(question, unable)
        if len(serving) > 1:
            raise unknown_response(serving)
        return serving[0]

    def caller(self, question: RoutingRequest, unable: Mapping[str, Exclusion]) -> str | None:
        """The target that called the tools that a request answers; None if unknown or unable.

        It evidently accepts tools, whatever the pool file says.
        """
        caller = self._sessions.caller(
            question.tool_call_ids, session=question.session, key=question.key
        )
        state = None if caller else self._sessions.state(question.session, question.at)
        last = None if state is None else state.target
        target = last if caller is None else self._candidates.target_of(caller)
        if target is None or target not in self._names:
            return None
        if caller is not None and target in unable and unable[target].obstacle == "need":
            without = replace(question, needs=question.needs - {"tools"})
            unable = self._candidates.find_unable(without, request_tokens(question, None))
        return None if target in unable else caller or target


@final
class ResponseOwners:
    """Finds the target that keeps a stored response.

    Args:
        pool: All targets.
        sessions: What is remembered of responses.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self._names = pool.names
        self._candidates = Candidates(pool)
        self._sessions = sessions

    def keeper(self, response: str, question: RoutingRequest) -> str:
        """The target that keeps a response; if it has several endpoints, the one that does.

        Where the gateway has keys, only a response known to belong to the client's key is found,
        so a guessed or shared id is useless. Without keys, a response that isn't remembered is
        assumed to be at the only target that serves responses, if there is just one.

        Args:
            response: Its id.
            question: The client's key and the targets that it allows.

        Raises:
            RefusalError: 404, it is unknown or another key's, or its target is gone.
        """
        key = question.key
        unable = self._candidates.find_unable(question, 0)
        keeper = self._sessions.find_owned(response, key=key)
        if keeper is not None:
            target = self._candidates.target_of(keeper)
            if target in self._names and target not in unable:
                return keeper
            why = unable[target].words if target in unable else "it is no longer in the pool"
            raise stored_lost(keeper, why)
        if key is not None or self._sessions.is_anothers(response, key=None):
            raise stored_not_of_key()
        excluded = self._candidates.add_unwanted(question, None, unable)
        serving = [self._names[k] for k in self._candidates.columns_left(excluded)]
        if not serving:
            raise no_eligible_target(question, excluded)
        if len(serving) > 1:
            raise stored_unknown(serving)
        return serving[0]


def is_routed(traffic: TrafficSettings, *, session: str | None, decision: str) -> bool:
    """Whether a request is in the routed share.

    As the share grows, conversations that were routed stay routed.

    Args:
        traffic: The settings of the share.
        session: The name of the conversation; None where it has none.
        decision: The decision's id, which counts where there is no conversation.
    """
    return traffic.share >= 1 or share_of(session or decision) < traffic.share


_RANDOM_BITS = 62
_SHARE_DIGITS = 13


def decision_id(at: float, *, random: Callable[[int], bytes] = os.urandom) -> str:
    """A new decision id: `pr_` and 32 hexadecimal digits, a UUID version 7 (RFC 9562, 5.7).

    The 12 bits after the milliseconds are their fraction (RFC 9562, 6.2, method 3).

    Args:
        at: Seconds since 1970.
        random: Returns the given number of random bytes.
    """
    ticks = int(at * 4_096_000)
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    chance = int.from_bytes(random(8), "big") & ((1 << _RANDOM_BITS) - 1)
    high = milliseconds << 16 | 0x7 << 12 | fraction
    return f"pr_{high << 64 | 0b10 << _RANDOM_BITS | chance:032x}"


def share_of(name: str) -> float:
    """A fixed number in [0, 1) for a name, from its last hexadecimal digits.

    Args:
        name: A decision's id or a conversation's name.
    """
    return int(name[-_SHARE_DIGITS:], 16) / float(1 << 4 * _SHARE_DIGITS)
