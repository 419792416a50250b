"""What replicas share: leases of budgets, limits of keys, and conversations.

A decision looks only at the leases of budgets. A lease belongs to the replica until the replica
gives it back, or the hour or day ends. So a replica that is cut off can go on with its lease. What
a killed replica has spent is never spent again.

The database admits each request of a key with limits. While it is away, each replica admits its
share: the limit divided by the number of replicas, rounded down, and at least 1.

Conversations, tool calls and stored responses are rows, named by a hash, so that no id of a client
or a target is in the table.
"""

import asyncio
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Any, final

from prefill_router.database import DownError, PostgresStatement, Rows
from prefill_router_gateway.decide import AffinityPlace, BudgetState, Per, Sessions, SessionState
from prefill_router_gateway.guard import (
    ROUNDING,
    ClientKey,
    KeyLimits,
    too_many_at_once,
    too_many_per_minute,
)
from prefill_router_gateway.settings import BudgetSettings
from prefill_router_gateway.shared import tables

LeaseName = tuple[str, Per, int]
"""The owner of a budget (a key's name, or empty for the whole gateway), hour or day, and which."""
_IDLE_SECONDS = 30.0
_DENIED_SECONDS = 1.0
_LEAST = 1 / 8


@final
@dataclass(slots=True)
class _Lease:
    """US dollars of one window; times are of a monotonic clock, in seconds."""

    spent: float = 0.0
    granted: float = 0.0
    others: float = 0.0
    spent_at: float = 0.0
    denied_at: float = float("-inf")


@final
class BudgetLeases:
    """The leases of one replica; it implements `BudgetShares`.

    Args:
        replica: The replica's name.
        share: The share of a budget that is leased at a time.
        clock: A monotonic clock, in seconds.

    Attributes:
        is_cut_off: Whether no further lease can be had now.
        unwritten: The leases whose spending isn't in the database yet.
    """

    def __init__(
        self, replica: str, *, share: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._replica, self._share, self._clock = replica, share, clock
        self._leases: dict[LeaseName, _Lease] = {}
        self.is_cut_off = False
        self.unwritten: set[LeaseName] = set()

    def count(self, owner: str, per: Per, window: int, dollars: float) -> None:
        """Count this replica's spending."""
        name = (owner, per, window)
        lease = self._lease(name)
        lease.spent += dollars
        lease.spent_at = self._clock()
        self.unwritten.add(name)

    def find(self, budget: BudgetSettings, window: int) -> tuple[float, float]:
        """The dollars that all replicas spent, and what is left of this one's lease."""
        lease = self._leases.get((budget.key or "", budget.per, window))
        if lease is None:
            return 0.0, 0.0
        return lease.spent + lease.others, lease.granted - lease.spent

    def find_low(self, states: Iterable[BudgetState]) -> list[BudgetState]:
        """Those of these budgets of whose lease less than half is left."""
        return [s for s in states if s.leased < self._lease_size(s) / 2 and self._may_ask(s)]

    def grants(self, states: Iterable[BudgetState], replicas: int) -> Iterator[PostgresStatement]:
        """The statements that ask for leases, each for one of these budgets.

        Args:
            states: The budgets.
            replicas: How many replicas there are.
        """
        for state in states:
            size = self._lease_size(state)
            owner, per, window = name = _lease_name(state)
            self._lease(name)
            yield (
                tables.GRANT,
                {
                    "owner": owner,
                    "per": per,
                    "win": window,
                    "replica": self._replica,
                    "dollars": state.budget.dollars,
                    "want": max(0.0, size - state.leased),
                    "parts": 2 * replicas,
                    "least": _LEAST * size + max(0.0, -state.leased),
                },
            )

    def take_grants(self, states: Iterable[BudgetState], rows: Sequence[Rows]) -> None:
        """Take what the database granted, in the order of `grants`."""
        for state, ((granted, others),) in zip(states, rows, strict=True):
            lease = self._lease(_lease_name(state))
            lease.others = others
            if granted <= max(lease.granted, lease.spent):
                lease.denied_at = self._clock()
            lease.granted = granted

    def spending(self, names: Iterable[LeaseName]) -> list[dict[str, Any]]:
        """The rows of the spending of leases."""
        fields = ("owner", "per", "win", "replica", "spent")
        values = ((*name, self._replica, self._lease(name).spent) for name in names)
        return [dict(zip(fields, row, strict=True)) for row in values]

    def in_use(self) -> tuple[list[Any], ...]:
        """The columns owner, per and win of all leases."""
        return tuple([list(column) for column in zip(*self._leases, strict=True)]) or ([],) * 3

    def learn(self, rows: Rows) -> None:
        """Take what other replicas spent: owner, per, win, and US dollars."""
        for owner, per, window, dollars in rows:
            self._lease((owner, per, window)).others = float(dollars)

    def returns(
        self, reserved: Callable[[str], float] | None = None
    ) -> Iterator[PostgresStatement]:
        """The statements that give back what isn't used.

        Args:
            reserved: Returns the dollars that requests in flight of an owner need, which are kept
                of leases that nothing was spent of for half a minute. None gives all back.
        """
        before = self._clock() - _IDLE_SECONDS
        for name, lease in self._leases.items():
            rest = lease.spent if reserved is None else lease.spent + reserved(name[0])
            if rest < lease.granted and (reserved is None or lease.spent_at < before):
                lease.granted = rest
                yield tables.RETURN, (rest, *name, self._replica, rest)

    def rewrite(self) -> None:
        """Write all spending again, since a database that crashed may have lost the latest."""
        self.unwritten.update(self._leases)

    def forget(self, oldest: Mapping[Per, int]) -> None:
        """Forget windows before the oldest that is kept."""
        self._leases = {n: lease for n, lease in self._leases.items() if n[2] >= oldest[n[1]]}
        self.unwritten &= self._leases.keys()

    def _lease_size(self, state: BudgetState) -> float:
        """The dollars that a lease should have, beyond those that requests in flight need."""
        return self._share * state.budget.dollars

    def _may_ask(self, state: BudgetState) -> bool:
        lease = self._leases.get(_lease_name(state))
        return lease is None or self._clock() - lease.denied_at >= _DENIED_SECONDS

    def _lease(self, name: LeaseName) -> _Lease:
        lease = self._leases.get(name)
        if lease is None:
            lease = self._leases[name] = _Lease(spent_at=self._clock())
            self.unwritten.add(name)
        return lease


def _lease_name(state: BudgetState) -> LeaseName:
    return state.budget.key or "", state.budget.per, state.window


Ask = Callable[[str, Any], Awaitable[Rows]]
"""Runs a statement with its values; raises `DownError` where the database is away."""


@final
class SharedKeyLimits:
    """Admits requests of keys, as `KeyLimits` does for a gateway by itself.

    Args:
        local: This replica's own requests, which decide while the database is away.
        replica: The replica's name.
        ask: Runs a statement.
        request_write: Begins to write which requests ended, with all else that is new.
        replicas: Returns how many replicas there are.

    Attributes:
        under_way: The requests in flight here of each key whose concurrent requests are limited.
        ended: Those that ended, as far as the database doesn't know it yet.
        request_write: Waits until the database knows them, or is given up for now.
        turn: Held while these numbers are written to the database again.
    """

    def __init__(
        self,
        local: KeyLimits,
        replica: str,
        *,
        ask: Ask,
        request_write: Callable[[], Awaitable[None]],
        replicas: Callable[[], int],
    ) -> None:
        self._local, self._replica, self._ask, self._replicas = local, replica, ask, replicas
        self.request_write = request_write
        self.under_way: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.turn = asyncio.Lock()

    @asynccontextmanager
    async def admit(self, key: ClientKey) -> AsyncIterator["KeyPlace"]:
        """Admit a request until the block ends, or until its place is freed.

        Raises:
            RefusalError: 429 with `retry-after`: the key has reached a limit.
        """
        await self._enter(key)
        place = KeyPlace(self, key)
        try:
            yield place
        finally:
            await place.free_everywhere()

    async def _enter(self, key: ClientKey) -> None:
        if key.requests_per_minute is None and key.concurrent is None:
            self._local.enter(key)
            return
        share = self._divide_limits(key)
        values = {
            "owner": key.name,
            "replica": self._replica,
            "rpm": key.requests_per_minute,
            "most": key.concurrent,
            "one": 1 - ROUNDING,
        }
        if self.turn.locked():
            async with self.turn:
                pass
        try:
            if not await self._ask(tables.ENTER, values):
                ((filled, under_way),) = await self._ask(tables.SEE_LIMITS, values)
                if key.concurrent is not None and under_way >= key.concurrent:
                    raise too_many_at_once(key, under_way)
                raise too_many_per_minute(key, min(1.0, filled))
        except DownError:
            self._local.enter(share)
        else:
            self._local.count(share)
        self.under_way[key.name] += key.concurrent is not None

    def leave(self, key: ClientKey) -> None:
        """Count a request of a key as ended."""
        self._local.leave(key)
        if key.concurrent is not None:
            self.under_way[key.name] -= 1
            self.ended[key.name] += 1

    def _divide_limits(self, key: ClientKey) -> ClientKey:
        per_minute, at_once, parts = key.requests_per_minute, key.concurrent, self._replicas()
        return key.model_copy(
            update={
                "requests_per_minute": per_minute and max(1, per_minute // parts),
                "concurrent": at_once and max(1, at_once // parts),
            }
        )


@final
class KeyPlace:
    """The place of a request among those of its key; it implements `SharedPlace`.

    Args:
        limits: The limits that count it.
        key: The key.
    """

    __slots__ = ("_is_held", "_key", "_limits")

    def __init__(self, limits: SharedKeyLimits, key: ClientKey) -> None:
        self._limits, self._key, self._is_held = limits, key, True

    def free(self) -> None:
        """Free it; other replicas learn it with what is written next. Later calls do nothing."""
        if self._is_held:
            self._is_held = False
            self._limits.leave(self._key)

    async def free_everywhere(self) -> None:
        """Free it, and wait until the other replicas know it."""
        if self._is_held:
            self.free()
            await self._limits.request_write()


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
                self._sessions.learn(place, SessionState(target, tokens, at, owner == _ESCALATED))
            else:
                self._sessions.learn(place, (target, owner) if kind == "response" else target)

    def begin(self) -> list[dict[str, Any]]:
        """All rows to be written; `end` must follow."""
        self._in_writing, self._unwritten = self._unwritten, {}
        rows = (_make_row(place, *entry) for place, entry in self._in_writing.items())
        return sorted(rows, key=itemgetter("name"))

    def end(self, *, written: bool) -> None:
        """Record whether the rows were written; if not, they are kept."""
        if not written:
            self._unwritten = {**self._in_writing, **self._unwritten}
        self._in_writing = {}


_ESCALATED = "escalated"
"""In place of the owner, which a conversation has in its name."""


def name_of(place: AffinityPlace) -> str:
    """The name of an entry in the table."""
    return sha256(repr(place).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _make_row(place: AffinityPlace, value: Any, at: float) -> dict[str, Any]:
    """An entry as a row."""
    row: dict[str, Any] = {"name": name_of(place), "kind": place[0], "tokens": 0, "at": at}
    if isinstance(value, SessionState):
        row |= {"owner": _ESCALATED} if value.is_escalated else {}
        return {**row, "target": value.target, "tokens": value.tokens, "at": value.at}
    target, owner = value if place[0] == "response" else (value, None)
    return {**row, "target": target, "owner": owner}
