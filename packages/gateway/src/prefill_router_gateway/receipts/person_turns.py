"""The turns of people in conversations: which requests belong to one, and who answered it.

A turn begins with a request that brings a new ask. It has all further requests by which an agent
goes on with that ask, such as those with the results of tools. What a subagent asks meanwhile is
its own turn, but it helps to answer this one, too. Requests that name their target belong to turns
like all others. Titles, topics and summaries belong to no turn.

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
        is_subagents: Whether a subagent asked it.
    """

    conversation: str
    name: str | None
    at: float
    ids: tuple[str, ...]
    target: str | None
    why: str = ""
    is_subagents: bool = False


@dataclass
class _OpenTurn:
    """A turn whose requests are being read."""

    at: float
    name: str | None
    has_beginning: bool
    ids: list[str] = field(default_factory=list)
    targets: set[str] = field(default_factory=set)
    is_answered: bool = False

    def finish(self, place: "_Place") -> PersonTurn:
        why = _SEVERAL if len(self.targets) > 1 else ""
        if not self.has_beginning:
            why = _NO_BEGINNING
        if not self.is_answered:
            why = _NONE
        return PersonTurn(
            conversation=place[0],
            name=self.name,
            at=self.at,
            ids=tuple(self.ids),
            target=None if why else next(iter(self.targets)),
            why=why,
            is_subagents=place[1],
        )


_Place = tuple[str, bool]
"""A conversation, and whether a subagent asks in it: a client may give both one name."""


def turns_by_request(url: str, *, since: float | None = None) -> dict[str, PersonTurn]:
    """The turn of each request that doesn't stand alone; raises as `read_receipts`.

    A turn of one request that a target answered isn't in it: its receipt says all.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970. Turns that began earlier
            aren't credited.
    """
    conditions: Conditions = [] if since is None else [("at >= ?", [since])]
    with closing(open_store(url, create=False)) as store:
        turns = _read_turns(store, conditions)
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
        turn: The agent's name of the turn, or `last` for the latest that has an answer; None for
            all.
    """
    if not conversations:
        return []
    marks = ", ".join("?" * len(conversations))
    conditions: Conditions = [(f"session IN ({marks})", list(conversations))]
    conditions += [] if key is None else [("client_key = ?", [key])]
    with closing(open_store(url, create=False)) as store:
        turns = sorted(_read_turns(store, conditions), key=lambda each: each.at)
    turns = [each for each in turns if not each.is_subagents] or turns
    if turn == "last":
        return ([each for each in turns if each.why != _NONE] or turns)[-1:]
    return [each for each in turns if turn in (None, each.name)]


def _read_turns(store: Database, conditions: Conditions) -> list[PersonTurn]:
    turns: dict[_Place, list[_OpenTurn]] = defaultdict(list)
    help_of: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for at, name, session, target, outcome, in_loop, text in pages(store, _COLUMNS, conditions):
        details = named_values(text, name) if any(mark in text for mark in _MARKS) else {}
        agent: Mapping[str, Any] = details.get("agent", {})
        goes_on = any((in_loop, details.get("in_tool_loop"), agent.get("is_ongoing")))
        if agent.get("kind") in ASIDE or (session is None and not goes_on):
            continue
        is_subagents = agent.get("kind") == "subagent"
        place = (session or name, is_subagents)  # without a conversation it is one by itself
        turn = _find_turn(turns[place], agent.get("turn"), at, goes_on=goes_on)
        turn.ids.append(name)
        turn.is_answered |= outcome == "answered"
        if outcome in _SENT and target is not None:
            turn.targets.add(target)
            helped = {agent.get("parent"), session if is_subagents else None}
            for conversation in filter(None, helped):
                help_of[conversation].append((at, target))
    return list(_finish_turns(turns, help_of))


def _find_turn(turns: list[_OpenTurn], name: str | None, at: float, *, goes_on: bool) -> _OpenTurn:
    """The turn that a request belongs to; a new one where it brings a new ask.

    Where it goes on with a turn of another name, the beginning of that turn isn't known.
    """
    last = turns[-1] if turns else None
    if last is not None and name is not None and last.name == name:
        return last
    if last is None or not goes_on or None not in (name, last.name):
        turns.append(_OpenTurn(at, name, has_beginning=not goes_on))
    return turns[-1]


def _finish_turns(
    turns: Mapping[_Place, list[_OpenTurn]], help_of: Mapping[str, list[tuple[float, str]]]
) -> Iterator[PersonTurn]:
    """All turns, each with the targets that answered subagents meanwhile."""
    for place, opened in turns.items():
        starts = [turn.at for turn in opened]
        for at, target in help_of.get(place[0], ()):
            number = bisect_right(starts, at) - 1
            if number >= 0:
                opened[number].targets.add(target)
        yield from (turn.finish(place) for turn in opened)
