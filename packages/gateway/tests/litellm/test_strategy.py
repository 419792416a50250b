"""LiteLLM's Router, whose deployments a gateway or a router in this process chooses."""

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from packages.gateway.tests.litellm.stand_in import CoreStandIn, NewerStandIn, StandIn, deployment
from packages.gateway.tests.server_process import (
    TARGETS,
    GatewayFiles,
    GatewayThread,
    gateway_thread,
    write_gateway_files,
)
from prefill_router import Router
from prefill_router.errors import ConfigError
from prefill_router.policy import OperatingPoints
from prefill_router_gateway.litellm import PrefillRouterStrategy, SpentError
from prefill_router_gateway.litellm.gateway_client import read_request

pytestmark = pytest.mark.slow

CHEAP, MIDDLE, EXPENSIVE = TARGETS
NOBODY = "http://127.0.0.1:9/v1"
TIMEOUT = 120.0
EACH = pytest.mark.parametrize("lite", [StandIn, NewerStandIn, CoreStandIn], indirect=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GatewayFiles:
    settings = {"logs": {"level": "warning"}, "routing": {"deadline_seconds": TIMEOUT}}
    return write_gateway_files(tmp_path_factory.mktemp("litellm"), NOBODY, settings=settings)


@pytest.fixture(scope="module")
def gateway(files: GatewayFiles) -> Iterator[GatewayThread]:
    with gateway_thread(files.paths(threads=1)) as run:
        yield run


@pytest.fixture
def lite(request: pytest.FixtureRequest) -> StandIn:
    """A Router with two deployments of the cheapest target, and a group of its own for `auto`."""
    router: StandIn = getattr(request, "param", StandIn)(
        deployment("other", "openai/other", "other"),
        deployment("auto", "openai/spare", "spare"),
        deployment(CHEAP, "openai/small", "cheap-1"),
        deployment(CHEAP, "openai/small", "cheap-2"),
        deployment("mid", f"hosted_vllm/{MIDDLE}", "middle"),
        deployment(EXPENSIVE, "openai/large", "expensive"),
    )
    return router


def make_strategy(lite: StandIn, url: str, **options: Any) -> PrefillRouterStrategy:
    """A strategy that is set on a Router, and waits for the gateway."""
    strategy = PrefillRouterStrategy(lite, **{"gateway": url, "timeout": TIMEOUT, **options})
    lite.set_custom_routing_strategy(strategy)
    return strategy


def unused_address() -> str:
    """An address at which nothing listens."""
    with closing(socket.socket()) as place:
        place.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{place.getsockname()[1]}"


def route_order(files: GatewayFiles, lam: float, text: str = "hi") -> tuple[str, ...]:
    return Router.load(files.router).route(text, lam=lam).order


def test_the_gateway_chooses_at_the_lam_that_is_given(
    lite: StandIn, gateway: GatewayThread, files: GatewayFiles
) -> None:
    for lam in (0.0, 1.0):
        strategy = make_strategy(lite, gateway.url, lam=lam)
        expected = {CHEAP: "cheap-1", MIDDLE: "middle", EXPENSIVE: "expensive"}[
            route_order(files, lam)[0]
        ]
        assert lite.completion("auto") == expected
        strategy.close()
        lite = type(lite)(*lite.rows)
    assert route_order(files, 0.0)[0] == CHEAP


@EACH
def test_awaited_calls_are_asked_in_every_loop(lite: StandIn, gateway: GatewayThread) -> None:
    strategy = make_strategy(lite, gateway.url + "/v1/", lam=0.0)

    async def ask() -> list[str]:
        try:
            return list(await asyncio.gather(*(lite.acompletion("auto") for _ in range(4))))
        finally:
            await strategy.aclose()

    assert asyncio.run(ask()) == asyncio.run(ask()) == ["cheap-1"] * 4


def test_litellm_itself_picks_among_a_targets_deployments(
    lite: StandIn, gateway: GatewayThread
) -> None:
    strategy = make_strategy(lite, gateway.url, lam=0.0)
    lite.cooling = {"cheap-1"}
    assert lite.completion("auto", stop=["x"]) == "cheap-2"
    model, options = lite.picked[-1]
    assert model == CHEAP
    assert options["request_kwargs"]["stop"] == ["x"]
    strategy.close()


@EACH
def test_a_target_that_has_none_to_give_is_followed_by_the_next_in_order(
    lite: StandIn, gateway: GatewayThread, files: GatewayFiles
) -> None:
    strategy = make_strategy(lite, gateway.url, lam=0.0)
    lite.cooling = {"cheap-1", "cheap-2"}
    second = route_order(files, 0.0)[1]
    assert lite.completion("auto") == {MIDDLE: "middle", EXPENSIVE: "expensive"}[second]
    everything, lite.rows = lite.rows, lite.rows[2:]  # begins with the target that cools down
    assert lite.completion("auto") == {MIDDLE: "middle", EXPENSIVE: "expensive"}[second]
    lite.rows = everything[1:2]
    assert lite.completion("auto") == "spare"  # no target has a deployment
    strategy.close()


@EACH
def test_a_target_that_failed_at_a_request_is_followed_by_the_next_in_order(
    lite: StandIn, gateway: GatewayThread, files: GatewayFiles
) -> None:
    strategy = make_strategy(lite, gateway.url, lam=0.0)
    places = {MIDDLE: "middle", EXPENSIVE: "expensive"}
    second, third = (places[target] for target in route_order(files, 0.0)[1:])
    lite.down = {"cheap-1"}
    assert lite.completion("auto") == second
    lite.down = {"cheap-1", second}
    assert lite.completion("auto") == third
    lite.down = {"cheap-1", second, third}
    with pytest.raises(ConnectionError):
        lite.completion("auto")
    lite.down = set()
    assert lite.completion("auto", metadata={"previous_models": [7, {}]}) == "cheap-1"
    strategy.close()


@EACH
def test_other_groups_deployments_and_embeddings_go_as_before(
    lite: StandIn, gateway: GatewayThread, files: GatewayFiles
) -> None:
    strategy = make_strategy(lite, gateway.url, lam=0.0)
    before = len(files.rows("id"))

    async def ask() -> list[str]:
        answers = [await lite.acompletion("other"), await lite.aembedding("auto", ["a", "b"])]
        answers.append(await lite.aembedding("auto", "a"))
        answers.append(await lite.acompletion("auto", specific_deployment=True))
        answers += [await lite.amoderation("auto", "a"), await lite.aimage_generation("auto")]
        await strategy.aclose()
        return answers

    assert asyncio.run(ask()) == ["other"] + 5 * ["spare"]
    assert lite.completion(EXPENSIVE) == "expensive"
    assert len(files.rows("id")) == before
    with pytest.raises(ValueError, match="No deployments"):
        lite.completion("nonsense")


def test_requests_are_read_as_the_gateway_reads_them(
    lite: StandIn, gateway: GatewayThread, files: GatewayFiles
) -> None:
    strategy = make_strategy(lite, gateway.url, lam=0.0)

    async def ask() -> str:
        place = await lite.aresponses("auto", "What is 2 + 2?", litellm_session_id="thread-7")
        await strategy.aclose()
        return place

    assert asyncio.run(ask()) == "cheap-1"
    last = files.rows("endpoint, outcome, session")[-1]
    assert (last["endpoint"], last["outcome"]) == ("responses", "routed")
    assert last["session"]


def test_a_gateway_that_cannot_be_reached_is_told_once(
    lite: StandIn, caplog: pytest.LogCaptureFixture, gateway: GatewayThread
) -> None:
    strategy = make_strategy(lite, unused_address(), lam=0.0)
    with caplog.at_level(logging.INFO, logger="prefill_router_gateway.litellm"):
        assert [lite.completion("auto", "SECRET") for _ in range(3)] == ["spare"] * 3
        (line,) = caplog.messages
        assert "can't be reached" in line
        assert "SECRET" not in line
        strategy._decides = PrefillRouterStrategy(
            lite, gateway=gateway.url, lam=0.0, timeout=TIMEOUT
        )._decides
        assert lite.completion("auto") == "cheap-1"
        assert caplog.messages[1:] == ["there are decisions again"]
    strategy.close()


def test_without_a_group_of_its_own_the_first_deployment_is_the_last_resort(
    lite: StandIn,
) -> None:
    lite.rows = [row for row in lite.rows if row["model_name"] != "auto"]
    strategy = make_strategy(lite, unused_address())
    assert lite.completion("auto") == "other"
    lite.rows = []
    with pytest.raises(ConfigError, match="no deployment"):
        lite.completion("auto")
    strategy.close()


def test_a_router_in_this_process_chooses_as_it_would_alone(
    lite: StandIn, files: GatewayFiles
) -> None:
    strategy = PrefillRouterStrategy(lite, router=files.router, lam=1.0, timeout=TIMEOUT)
    lite.set_custom_routing_strategy(strategy)
    places = {CHEAP: "cheap-1", MIDDLE: "middle", EXPENSIVE: "expensive"}
    texts = ["hi", "Prove it. " * 60, "What is 2 + 2?"]

    async def ask() -> list[str]:
        return [await lite.acompletion("auto", text) for text in texts]

    expected = [places[route_order(files, 1.0, text)[0]] for text in texts]
    assert asyncio.run(ask()) == [lite.completion("auto", text) for text in texts] == expected
    assert lite.completion("auto", " ") == "spare"  # nothing to read
    strategy.close()


def test_a_router_in_this_process_takes_marks_of_agents(
    lite: StandIn, files: GatewayFiles, tmp_path: Path
) -> None:
    marks = tmp_path / "agents.yaml"
    marks.write_text("agents: {marks: {ours: {openings: [<memo>], blocks: [memo]}}}")
    wrapped = f"<memo>\n{'Prove it. ' * 60}\n</memo>\nhi"
    places = {CHEAP: "cheap-1", MIDDLE: "middle", EXPENSIVE: "expensive"}
    answers = {}
    for agents, text in ((None, "hi"), (marks, wrapped), (None, wrapped)):
        strategy = PrefillRouterStrategy(
            lite, router=files.router, lam=0.9, agents=agents, timeout=TIMEOUT
        )
        lite.set_custom_routing_strategy(strategy)
        answers[agents, text] = lite.completion("auto", text)
        strategy.close()
        lite = type(lite)(*lite.rows)
    assert (
        answers[marks, wrapped] == answers[None, "hi"] == places[route_order(files, 0.9, "hi")[0]]
    )
    assert (
        answers[None, wrapped] == places[route_order(files, 0.9, wrapped)[0]] != answers[None, "hi"]
    )
    with pytest.raises(ConfigError, match="a gateway's marks in its settings"):
        PrefillRouterStrategy(lite, gateway="http://127.0.0.1:1", agents=marks)


def test_a_router_in_this_process_decides_at_its_own_setting(
    lite: StandIn, files: GatewayFiles, tmp_path: Path
) -> None:
    router = Router.load(files.router)
    answers = {}
    for name, lam in (("cheap", 0.0), ("accurate", 1.0)):
        points = OperatingPoints(1.0, None, lam, EXPENSIVE)
        record = router.record.model_copy(update={"chosen": points})
        router.with_record(record).save(tmp_path / name)
        strategy = PrefillRouterStrategy(lite, router=tmp_path / name, timeout=TIMEOUT)
        lite.set_custom_routing_strategy(strategy)
        answers[name] = lite.completion("auto")
        assert (
            answers[name]
            == {CHEAP: "cheap-1", MIDDLE: "middle", EXPENSIVE: "expensive"}[
                route_order(files, lam)[0]
            ]
        )
        strategy.close()
        lite = type(lite)(*lite.rows)
    assert answers["cheap"] != answers["accurate"]


class ReplyServer:
    """Replies to every request with one answer, on a port of its own."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self.url = ""

    async def __aenter__(self) -> "ReplyServer":
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._reply)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def reply(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    "response",
    [
        reply(200, b"not JSON"),
        reply(200, b"[1]"),
        reply(200, b'{"order": []}'),
        reply(200, b'{"order": [1]}'),
        reply(400, b'{"error": {"code": "no_eligible_target"}}'),
        reply(503, b""),
        b"nonsense\r\n\r\n",
    ],
)
def test_a_reply_without_a_decision_is_no_decision(lite: StandIn, response: bytes) -> None:
    async def ask() -> str:
        async with ReplyServer(response) as server:
            strategy = make_strategy(lite, server.url)
            place = await lite.acompletion("auto")
            await strategy.aclose()
            return place

    assert asyncio.run(ask()) == "spare"


def test_a_spent_budget_is_no_reason_to_spend_on(lite: StandIn) -> None:
    async def ask() -> None:
        async with ReplyServer(reply(429, b"{}")) as server:
            strategy = make_strategy(lite, server.url)
            try:
                with pytest.raises(SpentError) as caught:
                    await lite.acompletion("auto")
                assert (caught.value.status_code, caught.value.num_retries) == (429, 0)
            finally:
                await strategy.aclose()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "give either gateway"),
        ({"gateway": "http://x", "router": "y"}, "give either gateway"),
        ({"gateway": "127.0.0.1:8080"}, "must be http"),
        ({"gateway": "http://me:password@host"}, "without a password"),
        ({"gateway": "http://x", "lam": 2.0}, "lam is 2"),
        ({"gateway": "http://x", "timeout": 0.0}, "above 0"),
        ({"gateway": "http://x", "api_key_env": "NOT_SET_HERE"}, "api_key_env"),
        ({"router": "nowhere"}, "nowhere"),
        ({"router": "nowhere", "api_key_env": "X"}, "needs no key"),
    ],
)
def test_what_cannot_be_used_is_told_at_once(options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        PrefillRouterStrategy(StandIn(), **options)
    assert "password@" not in str(caught.value)


def test_what_is_no_router_of_litellm_is_told() -> None:
    with pytest.raises(ConfigError, match=r"isn't a litellm\.Router"):
        PrefillRouterStrategy(object(), gateway="http://x")


@EACH
def test_a_strategy_may_replace_another(
    lite: StandIn, gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_strategy(lite, unused_address(), model_group=CHEAP)
    second = make_strategy(lite, gateway.url, lam=0.0)
    monkeypatch.setattr(first, "_choose", None)  # it must not be called

    async def ask() -> str:
        place = await lite.acompletion("auto")
        await second.aclose()
        return place

    assert lite.completion("auto") == asyncio.run(ask()) == "cheap-1"
    assert lite.picked[-1][0] == CHEAP
    first.close()
    second.close()


class AskingAgain(StandIn):
    """A Router that asks the strategy in its own pick, and keeps it where nobody looks."""

    def set_custom_routing_strategy(self, strategy: Any) -> None:
        self.asked = strategy

    def get_available_deployment(self, *args: Any, **options: Any) -> Any:
        return self.asked.get_available_deployment(*args, **options)


def test_a_router_that_asks_again_for_its_own_pick_is_refused() -> None:
    lite = AskingAgain(deployment("auto", "openai/spare", "spare"))
    strategy = make_strategy(lite, unused_address())
    with pytest.raises(ConfigError, match="install one of these"):
        lite.completion("auto")
    strategy.close()


def test_the_key_goes_to_the_gateway(lite: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTING_KEY", "pr-secret")
    strategy = PrefillRouterStrategy(lite, gateway="http://localhost", api_key_env="ROUTING_KEY")
    assert strategy._decides._headers["authorization"] == "Bearer pr-secret"


def test_the_key_does_not_go_unencrypted(lite: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTING_KEY", "pr-secret")
    with pytest.raises(ConfigError, match=r"plain http to gateway\.example"):
        PrefillRouterStrategy(lite, gateway="http://gateway.example", api_key_env="ROUTING_KEY")
    monkeypatch.setenv("PREFILL_ROUTER_PLAIN_HTTP", "other, gateway.example")
    PrefillRouterStrategy(lite, gateway="http://gateway.example", api_key_env="ROUTING_KEY")


class Answer(BaseModel):
    number: int


def test_what_a_target_must_be_able_to_do_goes_with_the_request() -> None:
    turns = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    options = {"tools": tools, "response_format": Answer, "api_key": "sk-1", "stop": "x"}
    request = read_request(turns, None, {**options, "metadata": {"session_id": "ü", "x": 1}})
    assert request is not None
    assert request.session is None
    body = json.loads(request.body)
    assert body["tools"] == tools
    assert body["response_format"]["json_schema"]["name"] == "Answer"
    assert set(body) == {"model", "messages", "tools", "response_format"}
    in_metadata = read_request([Answer(number=1)], None, {"metadata": {"session_id": " s "}})
    assert in_metadata is not None
    assert in_metadata.session == "s"
    assert json.loads(in_metadata.body)["messages"] == [{"number": 1}]
    assert read_request([object()], None, None) is None
    assert read_request(None, None, None) is None
