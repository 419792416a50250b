"""Conversations, tool calls and stored responses as rows that replicas share.

A row is named by a hash, so that no id of a client or a target is in the table.
"""

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from operator import itemgetter
from typing import Any, final

from prefill_router.gateway.decide import AffinityPlace, Sessions, SessionState
from prefill_router.gateway.shared.connection import Rows

_DIGITS = 40


@final
class SharedAffinity:
    """The entries of `Sessions` that this replica made and the database doesn't have yet.

    Args:
        sessions: What this replica remembers.
        added: Called when there is a new entry.
    """

    def __init__(self, sessions: Sessions, added: Callable[[], None]) -> None:
        self._sessions, self._added = sessions, added
        self._unwritten: dict[AffinityPlace, tuple[Any, float]] = {}
        self._in_writing: dict[AffinityPlace, tuple[Any, float]] = {}

    def remember(self, place: AffinityPlace, value: Any) -> None:
        """Keep a new entry until it is written; of too many, the latest."""
        self._unwritten.pop(place, None)
        self._unwritten[place] = (value, time.time())
        while len(self._unwritten) > self._sessions.settings.most:
            del self._unwritten[next(iter(self._unwritten))]
        self._added()

    def learn(self, places: Mapping[str, AffinityPlace], rows: Rows) -> None:
        """Remember what other replicas wrote, unless this one knows better.

        Args:
            places: What was looked up, by name.
            rows: The rows that were found: name, target, owner, tokens, at.
        """
        for name, target, owner, tokens, at in rows:
            place = places[name]
            if place in self._unwritten or place in self._in_writing:
                continue
            kind = place[0]
            if kind == "session":
                self._sessions.learn(place, SessionState(target, tokens, at))
            else:
                self._sessions.learn(place, (target, owner) if kind == "response" else target)

    def begin(self) -> list[dict[str, Any]]:
        """All rows to be written; `end` must follow."""
        self._in_writing, self._unwritten = self._unwritten, {}
        rows = (_row(place, *entry) for place, entry in self._in_writing.items())
        return sorted(rows, key=itemgetter("name"))

    def end(self, *, written: bool) -> None:
        """Record whether the rows were written; if not, they are kept."""
        if not written:
            self._unwritten = {**self._in_writing, **self._unwritten}
        self._in_writing = {}


def name_of(place: AffinityPlace) -> str:
    """The name of an entry in the table."""
    return sha256(repr(place).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _row(place: AffinityPlace, value: Any, at: float) -> dict[str, Any]:
    """An entry as a row."""
    row: dict[str, Any] = {"name": name_of(place), "kind": place[0], "tokens": 0, "at": at}
    if isinstance(value, SessionState):
        return {**row, "target": value.target, "tokens": value.tokens, "at": value.at}
    target, owner = value if place[0] == "response" else (value, None)
    return {**row, "target": target, "owner": owner}
