"""The turns of people in conversations: which requests belong to one, and who answered it.

A turn begins with a request that brings a new ask. It has all further requests by which an agent
goes on with that ask, such as those with the results of tools. What a subagent asks meanwhile is
its own conversation's turn, but it helps to answer this one, too. Titles, topics and summaries
belong to no turn.

An outcome of a turn says something about one target only if this target gave all of its answers.
So no outcome is credited where another one answered a part of it: after a failure, since the agent
had got stuck, or for a subagent.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.database import Database
from prefill_router_gateway.receipts.reader import Conditions, pages
from prefill_router_gateway.receipts.rows import named_values
from prefill_router_gateway.receipts.store import open_store
from prefill_router_gateway.records import ASIDE

_COLUMNS = ("at", "id", "session", "answered_by", "outcome", "tool_loop", "details")
_MARKS = ('"agent":', '"in_tool_loop":')
"""What the details of a request have that say which turn it belongs to."""
_SENT = ("answered", "cut", "disconnected")
"""The outcomes of requests of which the client got an answer, or a part of one."""
_SEVERAL = "turns that several targets answered"
_NONE = "turns that no target answered"
_NO_BEGINNING = "turns whose beginning isn't known"


@final
@dataclass(frozen=True, kw_only=True)
class PersonTurn:
    """What a person asked in a conversation, with all requests that it took.

    Attributes:
        conversation: The name of the conversation, a hash.
        name: The agent's name of the turn; None where it gives none.
        at: When its first request arrived, in seconds since 1970.
        ids: The decisions of its requests, in order of time.
        target: The target that gave all of its answers; None where there is no such target.
        why: Why there is none, of turns like this; empty where there is one.
    """

    conversation: str
    name: str | None
    at: float
    ids: tuple[str, ...]
    target: str | None
    why: str = ""


@dataclass
class _OpenTurn:
    """A turn whose requests are being read."""

    at: float
    name: str | None
    has_beginning: bool
    ids: list[str] = field(default_factory=list)
    targets: set[str] = field(default_factory=set)
    is_answered: bool = False

    def closed(self, conversation: str) -> PersonTurn:
        why = "" if self.is_answered else _NONE
        if len(self.targets) > 1:
            why = _SEVERAL
        if not self.has_beginning:
            why = _NO_BEGINNING
        return PersonTurn(
            conversation=conversation,
            name=self.name,
            at=self.at,
            ids=tuple(self.ids),
            target=None if why else next(iter(self.targets)),
            why=why,
        )


def turns_by_request(url: str, *, since: float | None = None) -> dict[str, PersonTurn]:
    """The turn of each request that doesn't stand alone; raises as `read_receipts`.

    A turn of one request that a target answered isn't in it: its receipt says all.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970. Turns that began earlier
            aren't credited.
    """
    given: Conditions = [("session IS NOT NULL", [])]
    given += [] if since is None else [("at >= ?", [since])]
    with closing(open_store(url, create=False)) as store:
        turns = _read_turns(store, given)
    return {
        name: turn for turn in turns if turn.ids[1:] or turn.target is None for name in turn.ids
    }


def turns_of(
    url: str, conversations: Sequence[str], *, key: str | None = None, turn: str | None = None
) -> list[PersonTurn]:
    """The turns of a conversation in order of time, without its subagents'.

    Raises as `read_receipts`.

    Args:
        url: See `open_store`.
        conversations: The names that it may have.
        key: The name of the key that it must belong to; None for any.
        turn: The agent's name of the turn, or `last` for the latest; None for all.
    """
    marks = ", ".join("?" * len(conversations))
    given: Conditions = [(f"session IN ({marks})", list(conversations))]
    given += [] if key is None else [("client_key = ?", [key])]
    with closing(open_store(url, create=False)) as store:
        found = sorted(_read_turns(store, given), key=lambda one: one.at)
    if turn == "last":
        return found[-1:]
    return [one for one in found if turn in (None, one.name)]


def _read_turns(store: Database, given: Conditions) -> list[PersonTurn]:
    turns: dict[str, list[_OpenTurn]] = defaultdict(list)
    helpers: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for at, name, session, target, outcome, in_loop, text in pages(store, _COLUMNS, given):
        is_told = any(mark in text for mark in _MARKS)
        details = named_values(text, name) if is_told else {}
        agent, in_loop = details.get("agent", {}), in_loop or details.get("in_tool_loop", False)
        if agent.get("kind") in ASIDE:
            continue
        sent = target if outcome in _SENT else None
        if sent is not None and agent.get("parent") is not None:
            helpers[agent["parent"]].append((at, sent))
        turn = _turn_of(turns[session], agent, at, in_loop=bool(in_loop))
        turn.ids.append(name)
        turn.targets.update([sent] if sent is not None else [])
        turn.is_answered |= outcome == "answered"
    return list(_closed(turns, helpers))


def _turn_of(
    turns: list[_OpenTurn], agent: Mapping[str, Any], at: float, *, in_loop: bool
) -> _OpenTurn:
    """The turn that a request belongs to; a new one where it brings a new ask."""
    name, goes_on = agent.get("turn"), in_loop or agent.get("is_ongoing", False)
    is_same = bool(turns) and name is not None and turns[-1].name == name
    if not turns or not (goes_on or is_same):
        turns.append(_OpenTurn(at, name, has_beginning=not goes_on))
    return turns[-1]


def _closed(
    turns: Mapping[str, list[_OpenTurn]], helpers: Mapping[str, list[tuple[float, str]]]
) -> Iterator[PersonTurn]:
    for conversation, opened in turns.items():
        starts = [turn.at for turn in opened]
        for at, target in helpers.get(conversation, ()):
            place = bisect_right(starts, at) - 1
            if place >= 0:
                opened[place].targets.add(target)
        yield from (turn.closed(conversation) for turn in opened)
