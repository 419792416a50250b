"""Keeps a gateway and the shared database in step.

Before the decision about a request, it looks up what other replicas know of the conversation.
Before the client has the end of the answer, it writes what was answered and spent. A task does the
rest once a second, or as soon as something changed: leases, breakers, lam, presence.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, final
from uuid import uuid4

from prefill_router.database import AsyncPostgresDatabase, DownError, PostgresStatement, Rows
from prefill_router.endpoints import Breakers
from prefill_router.errors import StoreError
from prefill_router_gateway.decide import Budgets, Sessions, affinity_places
from prefill_router_gateway.guard import KeyLimits
from prefill_router_gateway.records import RoutingRequest
from prefill_router_gateway.settings import SharedSettings
from prefill_router_gateway.shared import tables
from prefill_router_gateway.shared.leases import (
    BudgetLeases,
    SharedAffinity,
    SharedKeyLimits,
    name_of,
)

_log = logging.getLogger(__name__)
_READS = 3
"""Connections for what requests wait for before they are decided on."""
_STEP_SECONDS = 1.0
_PURGE_SECONDS = 30.0
_HOUR, _DAY = 3600, 86_400
_EARLY = 0.25  # seconds by which a trial call may be early, since several clocks are read


@final
class SharedState:
    """What this gateway shares with other replicas; made in the event loop that serves.

    Args:
        settings: Its settings, with a URL.
        budgets: The budgets, whose leases it keeps.
        sessions: What is remembered of conversations.
        breakers: The circuit breakers of the targets.
        key_limits: The limits of keys.
        take_lam: Called with the lam that was set on the page of another replica.

    Attributes:
        key_limits: Admits the requests of keys.
        replicas: How many replicas there are, as last known.
        away_since: Since when the database can't be used, in seconds since 1970; None if it can.
        failures: How often it became unavailable.

    Raises:
        ConfigError: The URL can't be read.
        MissingExtraError: PostgreSQL needs the extra `postgres`.
    """

    def __init__(
        self,
        settings: SharedSettings,
        *,
        budgets: Budgets,
        sessions: Sessions,
        breakers: Breakers,
        key_limits: KeyLimits,
        take_lam: Callable[[float], None],
    ) -> None:
        url, seconds = settings.url or "", settings.wait_seconds
        databases = [
            AsyncPostgresDatabase(url, of="the shared state's", seconds=seconds)
            for _ in range(_READS + 1)
        ]
        *self._reads, self._writes = databases
        self._replica = uuid4().hex[:16]
        self._leases = BudgetLeases(self._replica, share=settings.lease)
        self._wake, self._wake_writer = asyncio.Event(), asyncio.Event()
        self._affinity = SharedAffinity(sessions, self._wake_writer.set)
        self._budgets, self._sessions, self._breakers = budgets, sessions, breakers
        self._take_lam = take_lam
        self.key_limits = SharedKeyLimits(
            key_limits,
            self._replica,
            ask=self._ask,
            request_write=self.request_write,
            replicas=lambda: self.replicas,
        )
        self.replicas, self.failures = 1, 0
        self.away_since: float | None = time.time()
        self._waiting: list[asyncio.Future[None]] = []
        self._low: dict[str | None, None] = {}  # keys that have budgets with low leases
        self._changed: set[str] = set()  # targets whose breakers changed here
        self._lam: float | None = None
        self._purged_at = time.monotonic()
        self._writing, self._leasing = asyncio.Lock(), asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect, and take over what the other replicas know.

        Raises:
            StoreError: The database can't be used.
        """
        await self._connect(*((statement, None) for statement in tables.FRESH))
        self._budgets.shares = self._leases
        self._sessions.on_entry = self._affinity.remember
        self._breakers.on_change, self._breakers.claim = self._note_breaker, self._claim
        await self._step()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._write_on())]

    async def close(self) -> None:
        """Give leases back, take leave, and close the connections."""
        for task in self._tasks:
            task.cancel()
            await asyncio.wait([task])
        if self.is_up:
            with suppress(DownError):
                await self._write()
                await self._writes.run(*self._leases.returns(), (tables.BURY, (self._replica,)))
        for connection in (*self._reads, self._writes):
            await connection.close()

    @property
    def is_up(self) -> bool:
        """Whether the database can be used."""
        return self.away_since is None

    @property
    def is_in_step(self) -> bool:
        """Whether the database can be used, and the tasks that use it run."""
        return self.is_up and not any(task.done() for task in self._tasks)

    @property
    def is_out_of_lease(self) -> bool:
        """Whether it is cut off and refuses all requests, since a budget's lease is used up."""
        states = self._budgets.states_of(None, time.time())
        return not self.is_up and any(s.budget.stop and s.leased <= 0 for s in states)

    # On a request's way.

    async def prepare(self, question: RoutingRequest) -> None:
        """Look up what a decision needs; without the database, what this replica knows must do."""
        if not self.is_up:
            return
        places = {name_of(place): place for place in affinity_places(question)}
        with suppress(DownError):
            if places:
                self._affinity.learn(places, await self._ask(tables.LOOK_UP, (" ".join(places),)))
            low = self._leases.find_low(self._budgets.states_of(question.key, question.at))
            if any(state.leased <= 0 for state in low):
                await self._renew([question.key])
            elif low:
                self._low[question.key] = None
                self._wake.set()

    def request_write(self) -> Awaitable[None]:
        """Begin to write what was answered and spent; done when written, or given up for now."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_up:
            self._waiting.append(waiter)
            self._wake_writer.set()
        else:
            waiter.set_result(None)
        return waiter

    def details(self, key: str | None) -> dict[str, Any]:
        """A receipt's `details`: replicas, what is left of a lease for this key, `away_since`."""
        states = self._budgets.states_of(key, time.time())
        leased = min((state.leased for state in states), default=None)
        return {"shared": [self.replicas, leased, self.away_since]}

    def set_lam(self, lam: float) -> None:
        """Tell the other replicas the lam that was set on the page."""
        self._lam = lam
        self._wake.set()

    async def _claim(self, target: str) -> bool:
        seconds = max(0.0, self._breakers.seconds - _EARLY)
        try:
            rows = await self._ask(tables.CLAIM, {"target": target, "seconds": seconds})
        except DownError:
            return True
        return bool(rows[0][0])

    def _note_breaker(self, target: str) -> None:
        self._changed.add(target)
        self._wake.set()

    async def _ask(self, statement: str, values: Any) -> Rows:
        if not self.is_up:
            raise DownError("the shared database is away", kind="away")
        try:
            freest = min(self._reads, key=lambda connection: connection.pending)
            (rows,) = await freest.run((statement, values))
        except DownError as error:
            self._note_loss(error)
            raise
        return rows

    # Writing.

    async def _write_on(self) -> None:
        """Write whatever is new, all of it at once, until cancelled."""
        while True:
            await self._wake_writer.wait()
            self._wake_writer.clear()
            waiting, self._waiting = self._waiting, []
            if self.is_up:
                with suppress(DownError):
                    await self._write()
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    async def _write(self) -> None:
        """Write answers and spending; what fails is written once the database is back.

        Raises:
            DownError: The database can't be used now.
        """
        async with self._writing:
            names, self._leases.unwritten = self._leases.unwritten, set()
            ended, self.key_limits.ended = self.key_limits.ended, Counter()
            left = [{"owner": o, "replica": self._replica, "n": n} for o, n in ended.items()]
            rows = self._leases.spending(names), left, self._affinity.begin()
            written = False
            try:
                if any(rows):
                    await self._writes.run((tables.WRITE, tuple(map(json.dumps, rows))))
                written = True
            except DownError as error:
                self._note_loss(error)
                raise
            finally:
                self._affinity.end(written=written)
                if not written:
                    self._leases.unwritten |= names

    async def _renew(self, keys: Iterable[str | None]) -> None:
        """Ask for leases of the budgets that apply to these keys' requests, where they are low."""
        async with self._leasing:
            now = time.time()
            low = [
                s for key in keys for s in self._leases.find_low(self._budgets.states_of(key, now))
            ]
            states = list({(s.budget.key, s.budget.per): s for s in low}.values())
            grants = list(self._leases.grants(states, self.replicas))
            if not grants:
                return
            await self._write()  # also the rows of new leases
            head = ((tables.DURABLE, None), (tables.LOCK, (tables.LEASES_LOCK,)))
            try:
                _, _, *rows = await self._writes.run(*head, *grants, together=True)
            except DownError as error:
                self._note_loss(error)
                raise
            self._leases.take_grants(states, rows)

    # Keeping in step.

    async def _run(self) -> None:
        """Keep in step until cancelled."""
        while True:
            # not `wait_for`, which before Python 3.12 loses a cancellation at the moment of a wake
            with suppress(TimeoutError):
                async with asyncio.timeout(_STEP_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            try:
                if not self.is_up:
                    await self._connect()
                await self._step()
            except StoreError as error:
                self._note_loss(error)

    async def _connect(self, *first: PostgresStatement) -> None:
        """Connect, and write which requests are in flight here."""
        for connection in (*self._reads, self._writes):
            await connection.open()
            await tables.prepare(connection)
        limits = self.key_limits
        async with limits.turn:
            limits.ended.clear()
            counts = sorted((owner, n) for owner, n in limits.under_way.items() if n > 0)
            owners, numbers = [owner for owner, _ in counts], [n for _, n in counts]
            await self._writes.run(
                (tables.LOCK, (tables.TABLES_LOCK,)),
                (tables.BURY, (self._replica,)),
                *first,
                (tables.SEEN, (self._replica,)),
                (tables.SET_IN_FLIGHT, (self._replica, owners, numbers)),
                together=True,
            )
            self._leases.rewrite()
            self.away_since, self._leases.is_cut_off = None, False
        if self.failures:
            _log.warning("the shared database is back")

    def _note_loss(self, error: StoreError) -> None:
        if not self.is_up:
            return
        self.away_since, self._leases.is_cut_off = time.time(), True
        self.failures += 1
        _log.error("%s: this replica goes on with its leases and its share of limits", error)
        self._wake_writer.set()  # nothing waits for it any longer

    async def _step(self) -> None:
        """Tell the database what changed here, and take what changed elsewhere."""
        changed, self._changed = self._changed, set()
        lam, self._lam = self._lam, None
        low, self._low = self._low, {}
        set_lam = ((tables.SET_LAM[0], None), (tables.SET_LAM[1], (lam,)))
        try:
            await self._write()
            async with self._leasing:
                *_, replicas, breakers, lams, spent = await self._writes.run(
                    (tables.SEEN, (self._replica,)),
                    (tables.BURY, ("",)),
                    *(self._breaker_statement(target) for target in sorted(changed)),
                    *(set_lam if lam is not None else ()),
                    *self._leases.returns(
                        lambda owner: self._budgets.dollars_reserved(owner or None)
                    ),
                    (tables.COUNT_REPLICAS, None),
                    (tables.READ_BREAKERS, None),
                    (tables.READ_LAM, None),
                    (tables.SPENT_BY_OTHERS, (self._replica, *self._leases.in_use())),
                )
        except DownError:
            self._changed |= changed
            self._lam = lam if self._lam is None else self._lam
            raise
        self.replicas = replicas[0][0]
        self._learn_breakers(dict(breakers))
        if self._lam is None and lams:
            self._take_lam(lams[-1][0])
        self._leases.learn(spent)
        await self._renew(low)
        if time.monotonic() - self._purged_at > _PURGE_SECONDS:
            self._purged_at = time.monotonic()
            await self._purge()

    def _breaker_statement(self, target: str) -> PostgresStatement:
        opened = self._breakers.seconds_open(target)
        if opened is None:
            return tables.CLOSE_BREAKER, (target,)
        return tables.OPEN_BREAKER, (target, opened)

    def _learn_breakers(self, opened: dict[str, float]) -> None:
        """Take over the other replicas' breakers, except those that changed here meanwhile."""
        for target in {*self._breakers.names, *opened} - self._changed:
            seconds = opened.get(target)
            if seconds is not None or self._breakers.seconds_open(target) is not None:
                self._breakers.learn(target, seconds)

    async def _purge(self) -> None:
        """Delete what nobody needs any longer."""
        now, sessions = time.time(), self._sessions.settings
        hour, day = int(now // _HOUR) - 1, int(now // _DAY) - 1
        self._leases.forget({"hour": hour, "day": day})
        old = {"expired": now - sessions.seconds, "most": sessions.most, "hour": hour, "day": day}
        for statement in tables.PURGE:
            await self._writes.run((statement, old))
