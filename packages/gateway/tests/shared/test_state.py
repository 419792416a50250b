"""The shared state of replicas, without gateways, at a real database."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from packages.gateway.tests.receipts.example_receipts import example_receipt
from packages.gateway.tests.receipts.postgres_server import IN_URL, PASSWORD, PostgresServer
from packages.gateway.tests.shared.replicas import Line, url_through
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

STOP_BUDGET = BudgetSettings(dollars=10, per="day", stop=True)
DAY_ROWS = "FROM shared_spend WHERE (owner, per) = ('', 'day')"
KEY = ClientKey(name="ann", sha256="0" * 64, requests_per_minute=6, concurrent=3)


@dataclass
class Replica:
    """The parts of a gateway that replicas share."""

    url: str
    wait: float = 60.0
    budgets: Budgets = field(default_factory=lambda: Budgets([STOP_BUDGET]))
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
        """Spend dollars as an admitted request does."""
        await self.shared.prepare(build_question())
        self.budgets.adjust_lam(0.5, None, time.time())
        self.budgets.spend(None, dollars, time.time())
        await self.shared.request_write()

    def admit_request(self) -> Any:
        """Keep a request of the key in flight until the block ends."""
        return self.shared.key_limits.admit(KEY)


def build_question(**more: Any) -> RoutingRequest:
    return RoutingRequest(endpoint="chat", at=time.time(), **more)


@asynccontextmanager
async def open_replica(url: str, *, wait: float = 60.0) -> AsyncIterator[Replica]:
    replica = Replica(url, wait)
    await replica.shared.open()
    try:
        yield replica
    finally:
        await replica.shared.close()


def run_with_two(
    postgres: PostgresServer, test: Callable[[Replica, Replica], Awaitable[None]]
) -> None:
    """Run a test with two replicas and new tables."""
    postgres.clear()

    async def run() -> None:
        async with open_replica(postgres.url) as first, open_replica(postgres.url) as second:
            await test(first, second)

    asyncio.run(run())


def run_with_line(postgres: PostgresServer, test: Callable[[Line], Awaitable[None]]) -> None:
    """Run a test with a line to the database and new tables."""
    postgres.clear()

    async def run(line: Line) -> None:
        await test(line)

    with closing(Line("127.0.0.1", postgres.port)) as line:
        asyncio.run(run(line))


async def wait_until(holds: Callable[[], Any]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def test_an_answer_is_known_elsewhere_once_it_is_written(postgres: PostgresServer) -> None:
    async def scenario(first: Replica, second: Replica) -> None:
        answer = {"tool_calls": ("call_1",), "response_id": "resp_1", "key": "ann"}
        first.sessions.record_answer("s", target="a", tokens=5, at=time.time(), **answer)
        await first.shared.request_write()
        loop_fields = {"in_tool_loop": True, "tool_call_ids": ("call_1",), "key": "ann"}
        await second.shared.prepare(
            build_question(session="s", previous_response_id="resp_1", **loop_fields)
        )
        state = second.sessions.state("s", time.time())
        assert state is not None
        assert (state.target, state.tokens) == ("a", 5)
        assert second.sessions.caller(["call_1"], session="s", key=None) == "a"
        assert second.sessions.caller(["call_1"], session=None, key="ann") == "a"
        assert second.sessions.find_owned("resp_1", key="ann") == "a"
        assert second.sessions.is_anothers("resp_1", key="bob")
        second.sessions.record_answer("s", target="b", tokens=7, at=time.time())
        await second.shared.request_write()
        await first.shared.prepare(build_question(session="s"))
        state = first.sessions.state("s", time.time())
        assert state is not None
        assert state.target == "b"

    run_with_two(postgres, scenario)
    names = [name for (name,) in postgres.execute("SELECT name FROM shared_affinity")]
    assert len(names) == 4
    assert not [name for name in names if "call" in name or "resp" in name]


def test_leases_never_exceed_the_budget_and_are_given_back_at_the_end(
    postgres: PostgresServer,
) -> None:
    async def scenario(first: Replica, second: Replica) -> None:
        for _ in range(100):
            try:
                await asyncio.gather(first.spend(0.3), second.spend(0.2))
            except RefusalError:
                break
            ((total,),) = postgres.execute(f"SELECT sum(greatest(spent, granted)) {DAY_ROWS}")
            assert total <= 10.5

    run_with_two(postgres, scenario)
    rows = postgres.execute(f"SELECT spent, granted {DAY_ROWS}")
    assert all(granted <= spent for spent, granted in rows)
    assert 8 <= sum(spent for spent, _ in rows) <= 10.5


def test_a_breaker_that_opens_is_open_for_all_and_one_replica_tries(
    postgres: PostgresServer,
) -> None:
    async def scenario(first: Replica, second: Replica) -> None:
        first.breakers.record_failure("a")
        await wait_until(lambda: second.breakers.state("a") != "closed")
        await wait_until(
            lambda: {first.breakers.state("a"), second.breakers.state("a")} == {"half_open"}
        )
        assert first.breakers.allow("a")
        assert await first.breakers.claim_trial("a")
        assert second.breakers.allow("a")
        assert not await second.breakers.claim_trial("a")
        first.breakers.record_success("a")
        await wait_until(lambda: second.breakers.state("a") == "closed")

    run_with_two(postgres, scenario)


def test_it_closes_though_something_is_to_be_told_at_that_moment(postgres: PostgresServer) -> None:
    async def close(first: Replica, _: Replica) -> None:
        await asyncio.sleep(0.1)  # until the replica waits for changes
        task = asyncio.create_task(first.shared.close())
        first.shared.set_lam(0.25)
        done, _ = await asyncio.wait([task], timeout=5)
        task.cancel()
        assert done

    run_with_two(postgres, close)


def test_a_close_that_is_cancelled_ends(postgres: PostgresServer) -> None:
    async def close(first: Replica, _: Replica) -> None:
        waits, ends = asyncio.Event(), asyncio.Event()

        async def wait_at_end() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                waits.set()
                await ends.wait()

        first.shared._tasks.append(asyncio.create_task(wait_at_end()))
        task = asyncio.create_task(first.shared.close())
        await waits.wait()
        task.cancel()
        await asyncio.wait([task])
        ends.set()
        assert task.cancelled()

    run_with_two(postgres, close)


def test_lam_is_told_and_forgotten_when_all_replicas_have_ended(postgres: PostgresServer) -> None:
    async def scenario(first: Replica, second: Replica) -> None:
        first.shared.set_lam(0.25)
        await wait_until(lambda: second.lams)
        assert second.lams[0] == 0.25
        async with open_replica(postgres.url) as third:
            await wait_until(lambda: third.shared.replicas == 3)
            assert third.lams[0] == 0.25

    run_with_two(postgres, scenario)
    assert postgres.execute("SELECT * FROM shared_lam") == [(0.25,)]

    async def read_lams() -> None:
        async with open_replica(postgres.url) as first:
            assert first.lams == []

    asyncio.run(read_lams())


def test_requests_in_flight_are_counted_again_after_a_cut(postgres: PostgresServer) -> None:
    async def scenario(line: Line) -> None:
        async with (
            open_replica(postgres.url) as first,
            open_replica(url_through(postgres.url, line)) as second,
            AsyncExitStack() as first_requests,
        ):
            await first_requests.enter_async_context(first.admit_request())
            await wait_until(lambda: second.shared.replicas == 2)
            async with AsyncExitStack() as second_requests:
                await second_requests.enter_async_context(second.admit_request())
                line.cut()
                await wait_until(lambda: not second.shared.is_up)
                with pytest.raises(RefusalError, match="may have 1"):  # half of the three allowed
                    await second_requests.enter_async_context(second.admit_request())
                line.restore()
                await wait_until(lambda: second.shared.is_up)
                await first_requests.enter_async_context(first.admit_request())
                with pytest.raises(RefusalError, match="has 3 requests in flight"):
                    await second_requests.enter_async_context(first.admit_request())
        assert postgres.execute("SELECT in_flight FROM shared_limits") == [({},)]

    run_with_line(postgres, scenario)


def test_what_was_answered_and_spent_during_a_cut_is_written_afterwards(
    postgres: PostgresServer,
) -> None:
    async def scenario(line: Line) -> None:
        async with (
            open_replica(postgres.url) as first,
            open_replica(url_through(postgres.url, line)) as second,
        ):
            await second.spend(0.1)
            line.cut()
            await wait_until(lambda: not second.shared.is_up)
            await second.spend(0.2)
            second.sessions.record_answer("s", target="a", tokens=5, at=time.time())
            sentences = explain(example_receipt(0, details=second.shared.details(None))).sentences()
            line.restore()
            await wait_until(lambda: second.shared.is_up)
            await second.shared.request_write()
            await first.shared.prepare(build_question(session="s"))
            assert first.sessions.state("s", time.time()) is not None
            await wait_until(
                lambda: first.budgets.states(time.time())[0].spent == pytest.approx(0.3)
            )
            shared, lease, outage = sentences[-3:]
            assert shared.startswith("shared by 2 replicas: budgets")
            assert lease == "left of this replica's lease of the budget: $0.700"
            assert outage.startswith("cut off from the shared database since 20")
            assert second.shared.details(None)["shared"][2] is None

    run_with_line(postgres, scenario)


def test_a_database_that_does_not_answer_is_away(postgres: PostgresServer) -> None:
    async def scenario(line: Line) -> None:
        async with open_replica(url_through(postgres.url, line), wait=0.3) as first:
            await first.spend(0.1)
            line.is_mute = True
            await first.shared.prepare(build_question(session="s"))
            await wait_until(lambda: not first.shared.is_up)
            await first.spend(0.1)  # spent from the lease
            assert first.shared.failures == 1
            line.is_mute = False
            await wait_until(lambda: first.shared.is_in_step)

    run_with_line(postgres, scenario)


def test_old_entries_are_purged(postgres: PostgresServer) -> None:
    async def scenario(first: Replica, _: Replica) -> None:
        first.sessions.use(SessionSettings(seconds=60, most=2))
        first.sessions.record_answer("old", target="a", tokens=5, at=time.time() - 61)
        for n in range(4):
            first.sessions.keep(f"resp_{n}", target="a", key=None)
        await first.shared.request_write()
        await first.shared._purge()

    run_with_two(postgres, scenario)
    kinds = [kind for (kind,) in postgres.execute("SELECT kind FROM shared_affinity")]
    assert kinds == ["response"] * 2


def test_a_database_that_cannot_be_used_is_told_without_its_password(
    postgres: PostgresServer,
) -> None:
    def read_refusal(url: str) -> str:
        with pytest.raises((ConfigError, StoreError)) as caught:
            asyncio.run(Replica(url).shared.open())
        return str(caught.value)

    postgres.clear()
    asyncio.run(_open_once(postgres.url))
    postgres.execute("UPDATE shared_schema SET version = 99")
    messages = [
        read_refusal(postgres.url),
        read_refusal(postgres.url.replace(IN_URL, "wrong")),
        read_refusal(postgres.url.replace(f":{postgres.port}/", ":1/")),
        read_refusal(postgres.url.replace(IN_URL, "100%")),
    ]
    assert "version 99; a newer prefill-router" in messages[0]
    assert "user or password refused" in messages[1]
    assert "connection refused" in messages[2]
    assert "the shared state's URL can't be read" in messages[3]
    assert not any(PASSWORD in first or IN_URL in first for first in messages)


async def _open_once(url: str) -> None:
    async with open_replica(url):
        pass
