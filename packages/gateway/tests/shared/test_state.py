"""Replicas without their gateways, at a real database: what one does, another knows."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from packages.gateway.tests.receipts.postgres_server import IN_URL, PASSWORD, PostgresServer
from packages.gateway.tests.receipts.receipts_made import made_receipt
from packages.gateway.tests.shared.replicas import Line, through
from prefill_router.endpoints import Breakers
from prefill_router.errors import ConfigError, StoreError
from prefill_router_gateway import RoutingRequest
from prefill_router_gateway.decide import Budgets, Sessions
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import ClientKey, KeyLimits
from prefill_router_gateway.receipts import explain
from prefill_router_gateway.settings import BudgetSettings, SessionSettings, SharedSettings
from prefill_router_gateway.shared import SharedState

pytestmark = pytest.mark.slow

STOP = BudgetSettings(dollars=10, per="day", stop=True)
OF_THE_DAY = "FROM shared_spend WHERE (owner, per) = ('', 'day')"
KEY = ClientKey(name="ann", sha256="0" * 64, requests_per_minute=6, concurrent=3)


@dataclass
class Replica:
    """The parts of a gateway that are shared."""

    url: str
    wait: float = 60.0
    budgets: Budgets = field(default_factory=lambda: Budgets([STOP]))
    sessions: Sessions = field(default_factory=lambda: Sessions(SessionSettings()))
    breakers: Breakers = field(default_factory=lambda: Breakers(failures=1, seconds=0.5))
    lams: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared = SharedState(
            SharedSettings(url=self.url, lease=0.1, wait_seconds=self.wait),
            budgets=self.budgets,
            sessions=self.sessions,
            breakers=self.breakers,
            key_limits=KeyLimits(),
            take_lam=self.lams.append,
        )

    async def spend(self, dollars: float) -> None:
        """Spend, as a request does that is admitted."""
        await self.shared.prepare(question())
        self.budgets.adjust_lam(0.5, None, time.time())
        self.budgets.spend(None, dollars, time.time())
        await self.shared.request_write()

    def held(self) -> Any:
        """A request of the key, until the block ends."""
        return self.shared.key_limits.admit(KEY)


def question(**more: Any) -> RoutingRequest:
    return RoutingRequest(endpoint="chat", at=time.time(), **more)


@asynccontextmanager
async def replica(url: str, *, wait: float = 60.0) -> AsyncIterator[Replica]:
    found = Replica(url, wait)
    await found.shared.open()
    try:
        yield found
    finally:
        await found.shared.close()


def with_two(postgres: PostgresServer, test: Callable[[Replica, Replica], Awaitable[None]]) -> None:
    """Run a test with two replicas, at tables that are new."""
    postgres.clear()

    async def run() -> None:
        async with replica(postgres.url) as one, replica(postgres.url) as two:
            await test(one, two)

    asyncio.run(run())


def with_line(postgres: PostgresServer, test: Callable[[Line], Awaitable[None]]) -> None:
    """Run a test with a line to the database, at tables that are new."""
    postgres.clear()

    async def run(line: Line) -> None:
        await test(line)

    with closing(Line("127.0.0.1", postgres.port)) as line:
        asyncio.run(run(line))


async def until(holds: Callable[[], Any]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def test_an_answer_is_known_elsewhere_once_it_is_written(postgres: PostgresServer) -> None:
    async def go(one: Replica, two: Replica) -> None:
        what = {"tool_calls": ("call_1",), "response_id": "resp_1", "key": "ann"}
        one.sessions.record_answer("s", target="a", tokens=5, at=time.time(), **what)
        await one.shared.request_write()
        asked = {"in_tool_loop": True, "tool_call_ids": ("call_1",), "key": "ann"}
        await two.shared.prepare(question(session="s", previous_response_id="resp_1", **asked))
        state = two.sessions.state("s", time.time())
        assert state is not None
        assert (state.target, state.tokens) == ("a", 5)
        assert two.sessions.caller(["call_1"], session="s", key=None) == "a"
        assert two.sessions.caller(["call_1"], session=None, key="ann") == "a"
        assert two.sessions.find_owned("resp_1", key="ann") == "a"
        assert two.sessions.is_anothers("resp_1", key="bob")
        two.sessions.record_answer("s", target="b", tokens=7, at=time.time())
        await two.shared.request_write()
        await one.shared.prepare(question(session="s"))
        state = one.sessions.state("s", time.time())
        assert state is not None
        assert state.target == "b"

    with_two(postgres, go)
    names = [name for (name,) in postgres.execute("SELECT name FROM shared_affinity")]
    assert len(names) == 4
    assert not [name for name in names if "call" in name or "resp" in name]


def test_leases_never_exceed_the_budget_and_are_given_back_at_the_end(
    postgres: PostgresServer,
) -> None:
    async def go(one: Replica, two: Replica) -> None:
        for _ in range(100):
            try:
                await asyncio.gather(one.spend(0.3), two.spend(0.2))
            except RefusalError:
                break
            ((used,),) = postgres.execute(f"SELECT sum(greatest(spent, granted)) {OF_THE_DAY}")
            assert used <= 10.5

    with_two(postgres, go)
    rows = postgres.execute(f"SELECT spent, granted {OF_THE_DAY}")
    assert all(granted <= spent for spent, granted in rows)
    assert 8 <= sum(spent for spent, _ in rows) <= 10.5


def test_a_breaker_that_opens_is_open_for_all_and_one_replica_tries(
    postgres: PostgresServer,
) -> None:
    async def go(one: Replica, two: Replica) -> None:
        one.breakers.record_failure("a")
        await until(lambda: two.breakers.state("a") != "closed")
        await until(lambda: {one.breakers.state("a"), two.breakers.state("a")} == {"half_open"})
        assert one.breakers.allow("a")
        assert await one.breakers.claim_trial("a")
        assert two.breakers.allow("a")
        assert not await two.breakers.claim_trial("a")
        one.breakers.record_success("a")
        await until(lambda: two.breakers.state("a") == "closed")

    with_two(postgres, go)


def test_it_closes_though_something_is_to_be_told_at_that_moment(postgres: PostgresServer) -> None:
    async def close(one: Replica, _: Replica) -> None:
        await asyncio.sleep(0.1)  # until it waits for something to tell
        closes = asyncio.create_task(one.shared.close())
        one.shared.set_lam(0.25)
        done, _ = await asyncio.wait([closes], timeout=5)
        closes.cancel()
        assert done

    with_two(postgres, close)


def test_a_close_that_is_cancelled_ends(postgres: PostgresServer) -> None:
    async def close(one: Replica, _: Replica) -> None:
        waits, ends = asyncio.Event(), asyncio.Event()

        async def takes_its_time() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                waits.set()
                await ends.wait()

        one.shared._tasks.append(asyncio.create_task(takes_its_time()))
        closes = asyncio.create_task(one.shared.close())
        await waits.wait()
        closes.cancel()
        await asyncio.wait([closes])
        ends.set()
        assert closes.cancelled()

    with_two(postgres, close)


def test_lam_is_told_and_forgotten_when_all_replicas_have_ended(postgres: PostgresServer) -> None:
    async def go(one: Replica, two: Replica) -> None:
        one.shared.set_lam(0.25)
        await until(lambda: two.lams)
        assert two.lams[0] == 0.25
        async with replica(postgres.url) as later:
            await until(lambda: later.shared.replicas == 3)
            assert later.lams[0] == 0.25

    with_two(postgres, go)
    assert postgres.execute("SELECT * FROM shared_lam") == [(0.25,)]

    async def alone() -> None:
        async with replica(postgres.url) as one:
            assert one.lams == []

    asyncio.run(alone())


def test_requests_in_flight_are_counted_again_after_a_cut(postgres: PostgresServer) -> None:
    async def go(line: Line) -> None:
        async with (
            replica(postgres.url) as one,
            replica(through(postgres.url, line)) as two,
            AsyncExitStack() as here,
        ):
            await here.enter_async_context(one.held())
            await until(lambda: two.shared.replicas == 2)
            async with AsyncExitStack() as there:
                await there.enter_async_context(two.held())
                line.cut()
                await until(lambda: not two.shared.is_up)
                with pytest.raises(RefusalError, match="may have 1"):  # a half of three
                    await there.enter_async_context(two.held())
                line.mend()
                await until(lambda: two.shared.is_up)
                await here.enter_async_context(one.held())
                with pytest.raises(RefusalError, match="has 3 requests in flight"):
                    await there.enter_async_context(one.held())
        assert postgres.execute("SELECT in_flight FROM shared_limits") == [({},)]

    with_line(postgres, go)


def test_what_was_answered_and_spent_during_a_cut_is_written_afterwards(
    postgres: PostgresServer,
) -> None:
    async def go(line: Line) -> None:
        async with replica(postgres.url) as one, replica(through(postgres.url, line)) as two:
            await two.spend(0.1)
            line.cut()
            await until(lambda: not two.shared.is_up)
            await two.spend(0.2)
            two.sessions.record_answer("s", target="a", tokens=5, at=time.time())
            told = explain(made_receipt(0, details=two.shared.details(None))).sentences()
            line.mend()
            await until(lambda: two.shared.is_up)
            await two.shared.request_write()
            await one.shared.prepare(question(session="s"))
            assert one.sessions.state("s", time.time()) is not None
            await until(lambda: one.budgets.states(time.time())[0].spent == pytest.approx(0.3))
            shared, lease, away = told[-3:]
            assert shared.startswith("shared by 2 replicas: budgets")
            assert lease == "left of this replica's lease of the budget: $0.7"
            assert away.startswith("cut off from the shared database since 20")
            assert two.shared.details(None)["shared"][2] is None

    with_line(postgres, go)


def test_a_database_that_does_not_answer_is_away(postgres: PostgresServer) -> None:
    async def go(line: Line) -> None:
        async with replica(through(postgres.url, line), wait=0.3) as one:
            await one.spend(0.1)
            line.is_mute = True
            await one.shared.prepare(question(session="s"))
            await until(lambda: not one.shared.is_up)
            await one.spend(0.1)  # of the lease
            assert one.shared.failures == 1
            line.is_mute = False
            await until(lambda: one.shared.is_in_step)

    with_line(postgres, go)


def test_old_entries_are_purged(postgres: PostgresServer) -> None:
    async def go(one: Replica, _: Replica) -> None:
        one.sessions.use(SessionSettings(seconds=60, most=2))
        one.sessions.record_answer("old", target="a", tokens=5, at=time.time() - 61)
        for n in range(4):
            one.sessions.keep(f"resp_{n}", target="a", key=None)
        await one.shared.request_write()
        await one.shared._purge()

    with_two(postgres, go)
    kinds = [kind for (kind,) in postgres.execute("SELECT kind FROM shared_affinity")]
    assert kinds == ["response"] * 2


def test_a_database_that_cannot_be_used_is_told_without_its_password(
    postgres: PostgresServer,
) -> None:
    def refused(url: str) -> str:
        with pytest.raises((ConfigError, StoreError)) as caught:
            asyncio.run(Replica(url).shared.open())
        return str(caught.value)

    postgres.clear()
    asyncio.run(_once(postgres.url))
    postgres.execute("UPDATE shared_schema SET version = 99")
    told = [
        refused(postgres.url),
        refused(postgres.url.replace(IN_URL, "wrong")),
        refused(postgres.url.replace(f":{postgres.port}/", ":1/")),
        refused(postgres.url.replace(IN_URL, "100%")),
    ]
    assert "version 99; a newer prefill-router" in told[0]
    assert "user or password refused" in told[1]
    assert "connection refused" in told[2]
    assert "the shared state's URL can't be read" in told[3]
    assert not any(PASSWORD in one or IN_URL in one for one in told)


async def _once(url: str) -> None:
    async with replica(url):
        pass
