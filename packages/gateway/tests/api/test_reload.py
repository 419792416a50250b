"""A gateway that reloads, or ends, while it answers."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import CHAT_EVENTS, COUNTS
from packages.gateway.tests.scripted_target import DONE, chunked_reply
from packages.gateway.tests.sdk_clients import RequestRecorder, openai_client
from packages.gateway.tests.server_process import gateway_process
from packages.gateway.tests.world import (
    CHATS,
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    PATIENCE,
    PRICES,
    LocalGateway,
    Reply,
    World,
    ask,
    chat,
    make_world,
    router_folder,
    user,
)

pytestmark = pytest.mark.slow

RAISED_PRICES = {name: {k: 10 * v for k, v in row.items()} for name, row in PRICES.items()}
STREAM = chat(stream=True)
STREAM_BODY = b"".join((*CHAT_EVENTS, DONE))


SETTINGS = {"routing": {"lam": 0, "deadline_seconds": PATIENCE}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("reload")
    shutil.copytree(router_folder(), folder / "router")
    with make_world(folder) as world:
        world.files = replace(world.files, router=folder / "router")
        yield world


@pytest.fixture(autouse=True)
def _fresh(world: World, gateway: LocalGateway) -> None:
    world.forget()
    world.write_pool(PRICES)
    world.files.configure(SETTINGS)
    assert gateway.ask("/admin/reload", {}).status == 200


class OpenStreams:
    """Streams that stay open until `end`."""

    def __init__(self, world: World, url: str, count: int) -> None:
        self.release = threading.Event()
        self.replies: list[Reply] = []
        for _ in range(count):
            script: list[Any] = list(chunked_reply([*CHAT_EVENTS, COUNTS, DONE]))
            script.insert(4, self.release)
            world[CHEAP].then(script)
        while world[CHEAP].request_arrived.acquire(blocking=False):  # by requests before these
            pass
        self._threads = [threading.Thread(target=self._ask, args=(url,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        for _ in range(count):
            assert world[CHEAP].request_arrived.acquire(timeout=PATIENCE)

    def _ask(self, url: str) -> None:
        self.replies.append(ask(url, CHATS, STREAM))

    def end(self) -> None:
        self.release.set()
        for thread in self._threads:
            thread.join(PATIENCE)


def price(url: str) -> float:
    rows = ask(url, "/v1/models").json["data"]
    return next(row["input_price"] for row in rows if row["id"] == CHEAP)


def await_price(url: str, due: float) -> None:
    until = time.monotonic() + PATIENCE
    while price(url) != due:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_reload_cuts_no_stream(world: World, gateway: LocalGateway) -> None:
    streams = OpenStreams(world, gateway.url, 5)
    before = gateway.ask(body=chat())
    world.write_pool(RAISED_PRICES, prices_date="2026-11-22")
    reply = gateway.ask("/admin/reload", {})
    assert reply.json["prices_date"] == "2026-11-22"
    assert price(gateway.url) == RAISED_PRICES[CHEAP]["input_price"]
    after = gateway.ask(body=chat())
    costs = [float(answer.own_header("estimated-cost") or "nan") for answer in (before, after)]
    assert costs[1] == pytest.approx(10 * costs[0], rel=0.01)
    streams.end()
    assert [reply.body for reply in streams.replies] == [STREAM_BODY] * 5
    ended = gateway.receipts[-5:]
    assert {receipt.cost for receipt in ended} == {(9 * 0.1 + 4 * 0.4) / 1e6}  # the old prices


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("targets: [", "not YAML"),
        ("targets: []", "target"),
        ("targets:\n- {name: other, base_url: 'http://127.0.0.1:9/v1'}", "none of the router's"),
        (
            "targets:\n- {name: target-0, api_key_env: NO_SUCH_KEY, base_url: 'http://h/v1'}",
            "NO_SUCH",
        ),
    ],
)
def test_what_cannot_be_read_changes_nothing(
    world: World, gateway: LocalGateway, text: str, problem: str
) -> None:
    streams = OpenStreams(world, gateway.url, 1)
    price_before = price(gateway.url)
    world.files.pool.write_text(text)
    reply = gateway.ask("/admin/reload", {})
    assert reply.status == 409
    assert reply.error["code"] == "reload_failed"
    assert problem in reply.error["message"]
    assert price(gateway.url) == price_before
    assert gateway.ask(body=chat()).status == 200
    streams.end()
    assert streams.replies[0].body == STREAM_BODY


def test_every_error_is_told_at_once(world: World, gateway: LocalGateway) -> None:
    world.files.configure({"routing": {"lam": 3, "novelty": -1}, "unheard": 1})
    world.files.pool.write_text("targets: [")
    message = gateway.ask("/admin/reload", {}).error["message"]
    assert "unheard" in message
    assert "not YAML" in message
    world.write_pool({**PRICES, "helper": {"base_url": "http://127.0.0.1:9/v1"}})
    settings = {
        "routing": {"fallback": "helper"},
        "traffic": {"share": 0.5, "otherwise": "helper"},
        "agents": {"plan": {"targets": ["helper"]}},
        "forward_headers": ["authorization", "x-tenant"],
        "budgets": [{"dollars": 1, "per": "day", "key": "nobody"}],
    }
    world.files.configure(settings)
    message = gateway.ask("/admin/reload", {}).error["message"]
    targets = ("routing.fallback", "traffic.otherwise", "agents.plan.targets")
    for wrong in (*targets, "forward_headers", "nobody"):
        assert wrong in message, wrong


def test_settings_are_read_anew(world: World, gateway: LocalGateway) -> None:
    forecaster = gateway.gateway.live.forecaster
    routing = {"lam": 1, "names": {"thrifty": 0.125}, "deadline_seconds": PATIENCE}
    world.files.configure({"routing": routing, "forward_headers": ["X-Tenant"]})
    assert gateway.ask("/admin/reload", {}).status == 200
    assert gateway.gateway.live.forecaster is forecaster
    assert gateway.ask(body=chat()).own_header("lam") == "1"
    assert gateway.ask(body=chat("thrifty")).own_header("lam") == "0.125"
    ask(gateway.url, CHATS, chat(CHEAP), {"X-Tenant": "ours", "Cookie": "a=b"})
    headers = world[CHEAP].requests[-1].headers
    assert headers["x-tenant"] == "ours"
    assert "cookie" not in headers


def test_settings_that_last_are_told(world: World, gateway: LocalGateway) -> None:
    world.files.configure({**SETTINGS, "receipts": {"keep_days": 7, "prompts": True}})
    warnings = gateway.ask("/admin/reload", {}).json["warnings"]
    (warning,) = [line for line in warnings if "restart" in line]
    assert "receipts.keep_days: changed, but only a restart" in warning
    assert "prompts" not in warning


def test_another_router_takes_over(world: World, gateway: LocalGateway) -> None:
    """Open streams end with the old router; the encoder's process is a new process."""
    streams = OpenStreams(world, gateway.url, 2)
    before = gateway.gateway.live
    shutil.rmtree(world.files.router)
    shutil.copytree(router_folder(150), world.files.router)
    reply = gateway.ask("/admin/reload", {})
    assert reply.json["router"] not in ("", before.loaded.light.fingerprint)
    assert gateway.gateway.live.forecaster.pid != before.forecaster.pid
    new = gateway.ask(body=chat(text="Which router are you?"))
    assert new.own_header("reason") == "policy"
    assert gateway.receipts[-1].router == reply.json["router"]
    assert before.forecaster.state == "ready"
    streams.end()
    assert [reply.body for reply in streams.replies] == [STREAM_BODY] * 2
    assert {r.router for r in gateway.receipts[-2:]} == {before.loaded.light.fingerprint}
    gateway.wait_until(lambda: before.forecaster.state == "closed")


def test_a_target_that_went_is_not_asked(world: World, gateway: LocalGateway) -> None:
    world.write_pool({name: PRICES[name] for name in (MIDDLE, EXPENSIVE)})
    assert gateway.ask("/admin/reload", {}).status == 200
    assert gateway.ask(body=chat()).own_header("target") == MIDDLE
    gone = gateway.ask(body=chat(CHEAP))
    assert (gone.status, gone.error["code"]) == (404, "model_not_found")
    world.write_pool({**PRICES, "newcomer": {"base_url": world[EXPENSIVE].url}})
    assert gateway.ask("/admin/reload", {}).status == 200
    assert gateway.ask(body=chat("newcomer")).own_header("target") == "newcomer"
    assert gateway.ask(body=chat()).own_header("target") == CHEAP
    assert world.requested_targets() == [CHEAP, MIDDLE, EXPENSIVE]


def test_a_process_that_is_hung_up_on_reads_anew(world: World) -> None:
    """Send SIGHUP with streams under way, then with a broken file, then end the process."""
    environment: Mapping[str, str] = world.environment
    with gateway_process(world.files, environment=environment) as process:
        streams = OpenStreams(world, process.url, 3)
        world.write_pool(RAISED_PRICES)
        process.reload()
        await_price(process.url, RAISED_PRICES[CHEAP]["input_price"])
        world.files.pool.write_text("targets: [")
        process.reload()
        until = time.monotonic() + PATIENCE
        while "reload failed, nothing was changed" not in process.log.read_text():
            assert time.monotonic() < until
            time.sleep(0.02)
        assert price(process.url) == RAISED_PRICES[CHEAP]["input_price"]
        streams.end()
        assert [reply.body for reply in streams.replies] == [STREAM_BODY] * 3
        with openai_client(process.url, RequestRecorder()) as client:
            stream = client.chat.completions.create(
                model="prefill-router:0", messages=[user("Hi")], stream=False
            )
        assert stream.choices[0].message.content == "42"
        last_stream = OpenStreams(world, process.url, 1)
        os.kill(process.run.pid, signal.SIGTERM)
        with pytest.raises(OSError, match=r"refused|reset|closed|pipe"):
            await_price(process.url, 0)  # it takes nobody more
        last_stream.end()
        assert last_stream.replies[0].body == STREAM_BODY
        assert process.run.wait(PATIENCE) == 0
    outcomes = [row["outcome"] for row in world.files.rows("outcome") if row["outcome"]][-5:]
    assert outcomes == ["answered"] * 5
    assert "Traceback" not in process.log.read_text()
