"""The plugin for LiteLLM: what it leaves of a request's candidates, and what it reports back."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from packages.gateway.tests.litellm.test_strategy import NOBODY, ReplyServer, reply, unused
from packages.gateway.tests.server_process import (
    TARGETS,
    GatewayFiles,
    GatewayThread,
    gateway_thread,
    write_gateway_files,
)
from prefill_router import Router
from prefill_router.errors import ConfigError
from prefill_router_gateway.litellm import PrefillRouterPlugin, SpentError
from prefill_router_gateway.receipts import read_receipts

pytestmark = pytest.mark.slow

CHEAP, MIDDLE, DEAR = TARGETS
PATIENT = 120.0
MODELS = {f"openai/{CHEAP}": CHEAP, MIDDLE: MIDDLE, "azure/large": DEAR}
NAMED = {"azure/large": DEAR}
BEGAN = datetime(2026, 11, 22, tzinfo=UTC)
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 10},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GatewayFiles:
    settings = {"logs": {"level": "warning"}, "routing": {"deadline_seconds": PATIENT}}
    return write_gateway_files(tmp_path_factory.mktemp("plugin"), NOBODY, settings=settings)


@pytest.fixture(scope="module")
def running(files: GatewayFiles) -> Iterator[GatewayThread]:
    with gateway_thread(files.paths(threads=1)) as run:
        yield run


class Lite:
    """LiteLLM's side of one request: it calls a plugin before each attempt, and then the event."""

    def __init__(self, plugin: PrefillRouterPlugin, *models: str, messages: Any = "hi") -> None:
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        self.plugin, self.models, self.messages = plugin, list(models or MODELS), said
        self.metadata: dict[str, Any] = {}
        self.error: Exception | None = None

    async def attempt(self) -> list[str]:
        """The candidates that are left for the next attempt."""
        context = SimpleNamespace(
            structured_messages=self.messages,
            candidate_models=list(self.models),
            metadata=dict(self.metadata),
            signals={},
        )
        assert await self.plugin.run(context) is context
        self.metadata["routing_plugin_signals"] = context.signals
        return list(context.candidate_models)

    @property
    def own(self) -> Any:
        return self.metadata["routing_plugin_signals"]["prefill_router"]

    async def failed(self, model: str, status: int | None = 500) -> None:
        """An attempt fails; LiteLLM keeps the error on the object that later attempts share."""
        self.error = ConnectionError()
        if status is not None:
            vars(self.error)["status_code"] = status
        self.metadata["previous_models"] = (*self.metadata.get("previous_models", ()), {})
        await self.event(model, "failure", {})

    async def event(self, model: str, status: str, usage: Any, **more: Any) -> None:
        logged = {"model": model, "status": status, "metadata": {"usage_object": usage}, **more}
        await self.plugin.ended(
            {
                "litellm_params": {"metadata": self.metadata, "litellm_metadata": None},
                "standard_logging_object": logged,
                "exception": self.error,
                "stream": True,
                "completion_start_time": BEGAN + timedelta(seconds=0.25),
            },
            response_obj=None,
            start_time=BEGAN,
            end_time=BEGAN + timedelta(seconds=0.5),
        )


_plugins: list[PrefillRouterPlugin] = []


def plugin(url: str, **options: Any) -> PrefillRouterPlugin:
    """One that waits, and is closed by `play`."""
    given = {"gateway": url, "targets": NAMED, "timeout": PATIENT, **options}
    _plugins.append(PrefillRouterPlugin(**given))
    return _plugins[-1]


def play(go: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        try:
            await go()
        finally:
            while _plugins:
                await _plugins.pop().aclose()

    asyncio.run(whole())


def outcomes(files: GatewayFiles, *decisions: str) -> list[Any]:
    found = {receipt.choice.id: receipt for receipt in read_receipts(files.url)}
    return [found[decision] for decision in decisions]


def test_the_chosen_target_is_left_with_all_its_deployments(
    running: GatewayThread, files: GatewayFiles
) -> None:
    async def go() -> None:
        for lam, models in ((0.0, [f"openai/{CHEAP}"] * 2), (1.0, ["azure/large"])):
            lite = Lite(plugin(running.url, lam=lam), *MODELS, f"openai/{CHEAP}")
            assert await lite.attempt() == models
            own = lite.own
            assert (own["target"], own["lam"]) == (MODELS[models[0]], lam)
            assert own["targets"] == MODELS
            right = Router.load(files.router).route("hi", lam=lam).correctness
            assert own["probabilities"] == pytest.approx({m: right[t] for m, t in MODELS.items()})
            costs = [own["costs"][model] for model in MODELS]
            assert costs == sorted(costs)
            assert costs[0] > 0
            headers = await lite.plugin.headers({"metadata": lite.metadata}, response=None)
            assert headers == {"x-prefill-router-decision-id": own["id"]}

    play(go)


def test_what_isnt_a_choice_between_targets_stays(
    running: GatewayThread, files: GatewayFiles
) -> None:
    chosen = plugin(running.url, lam=0.0)

    async def go() -> None:
        await Lite(chosen).attempt()  # from now on the gateway's targets are known
        before = len(files.rows("id"))
        for models in (["openai/a", "openai/b"], [DEAR], [DEAR, "openai/a"], [DEAR, DEAR]):
            lite = Lite(chosen, *models)
            assert await lite.attempt() == models
            assert await chosen.headers({"metadata": lite.metadata}) is None
        nothing = Lite(chosen, messages=[])
        assert await nothing.attempt() == list(MODELS)
        assert len(files.rows("id")) == before

    play(go)


def test_a_decision_is_among_the_candidates(running: GatewayThread, files: GatewayFiles) -> None:
    chosen = plugin(running.url, lam=0.0)

    async def go() -> None:
        await Lite(chosen).attempt()
        lite = Lite(chosen, MIDDLE, "azure/large", "openai/other")
        assert await lite.attempt() == [MIDDLE]
        (receipt,) = outcomes(files, lite.own["id"])
        assert receipt.choice.order == (MIDDLE, DEAR)

    play(go)


def test_an_attempt_that_failed_is_followed_by_another_target(
    running: GatewayThread, files: GatewayFiles
) -> None:
    async def go() -> None:
        lite = Lite(plugin(running.url, lam=0.0))
        seen = []
        for _ in MODELS:
            (model,) = await lite.attempt()
            seen.append((MODELS[model], lite.own["id"]))
            await lite.failed(model, 429)
        assert {target for target, _ in seen} == set(TARGETS)
        assert await lite.attempt() == [f"openai/{CHEAP}"]  # all have failed once
        await lite.event(f"openai/{CHEAP}", "success", USAGE)
        ids = [decision for _, decision in seen]
        *failed, last = outcomes(files, *ids, lite.own["id"])
        ends = [(r.outcome.kind, r.outcome.attempts[0].target) for r in failed]
        assert ends == [("failed", target) for target, _ in seen]
        assert [r.outcome.status for r in failed] == [429] * 3
        assert (last.outcome.kind, last.outcome.target) == ("answered", CHEAP)

    play(go)


@pytest.mark.parametrize("status", [None, 0, 700])  # no answer's status: the gateway's 500
def test_a_late_event_is_of_its_own_attempt(
    running: GatewayThread, files: GatewayFiles, status: int | None
) -> None:
    async def go() -> None:
        lite = Lite(plugin(running.url, lam=0.0))
        (first,) = await lite.attempt()
        earlier = lite.own["id"]
        lite.metadata["previous_models"] = ({},)
        (second,) = await lite.attempt()
        await lite.failed(first, status)  # only now is it logged
        await lite.event(second, "success", USAGE)
        one, other = outcomes(files, earlier, lite.own["id"])
        assert (one.outcome.kind, one.outcome.status) == ("failed", 500)
        assert (other.outcome.kind, other.outcome.target) == ("answered", MODELS[second])

    play(go)


def test_receipts_have_cost_latency_and_tokens(running: GatewayThread, files: GatewayFiles) -> None:
    async def go() -> None:
        lite = Lite(plugin(running.url, lam=0.0))
        (model,) = await lite.attempt()
        for cost in (0.0, 0.5):  # 0 is a price that LiteLLM doesn't know; the first report holds
            await lite.event(model, "success", USAGE, response_cost=cost)
        paid = Lite(lite.plugin)
        (model,) = await paid.attempt()
        await paid.event(model, "success", USAGE, response_cost=0.25)
        first, second = outcomes(files, lite.own["id"], paid.own["id"])
        assert first.cost not in (None, 0.5)
        assert second.cost == 0.25
        usage, outcome = first.outcome.usage, first.outcome
        assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (100, 10, 20)
        assert outcome.attempts[0].seconds == 0.5
        waited = outcome.total_seconds - outcome.first_byte_seconds
        assert waited == pytest.approx(0.25)

    play(go)


def test_attempts_of_others_arent_reported(running: GatewayThread, files: GatewayFiles) -> None:
    async def go() -> None:
        lite = Lite(plugin(running.url, lam=0.0))
        await lite.event("openai/other", "success", USAGE)
        await lite.attempt()
        await lite.event("openai/other", "success", USAGE)
        await lite.event("auto", "failure", {})  # no deployment was left
        (receipt,) = outcomes(files, lite.own["id"])
        assert receipt.outcome.kind == "routed"

    play(go)


def test_without_a_gateway_all_candidates_stay(
    running: GatewayThread, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a prompt that is nobody's business"

    async def go() -> None:
        alone, other = plugin(unused(), lam=0.0), plugin(running.url)
        for _ in range(3):
            lite = Lite(alone, messages=secret)
            assert await lite.attempt() == list(MODELS)
            assert lite.metadata["routing_plugin_signals"] == {}
        (line,) = caplog.messages
        assert "can't be reached" in line
        assert secret not in line
        alone._gateway, other._gateway = other._gateway, alone._gateway
        assert len(await Lite(alone).attempt()) == 1
        assert caplog.messages[1:] == ["the gateway works again"]

    with caplog.at_level(logging.INFO, logger="prefill_router_gateway.litellm"):
        play(go)


def test_a_report_that_isnt_taken_is_said_once(
    running: GatewayThread, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        lite, alone = Lite(plugin(running.url, lam=0.0)), plugin(unused())
        (model,) = await lite.attempt()
        lite.plugin._gateway, alone._gateway = alone._gateway, lite.plugin._gateway
        for _ in range(2):
            await lite.event(model, "success", USAGE)

    play(go)
    (line,) = caplog.messages
    assert "outcomes aren't reported" in line


def test_a_pool_that_changed_is_learned_anew(running: GatewayThread) -> None:
    async def go() -> None:
        chosen = plugin(running.url, lam=0.0)
        chosen._target_names = frozenset(("gone", CHEAP))
        models = ("openai/gone", *MODELS)
        assert await Lite(chosen, *models).attempt() == list(models)
        assert await Lite(chosen, *models).attempt() == [f"openai/{CHEAP}"]

    play(go)


def test_a_spent_budget_refuses() -> None:
    async def go() -> None:
        async with ReplyServer(reply(429, b"{}")) as server:
            with pytest.raises(SpentError):
                await Lite(plugin(server.url)).attempt()

    play(go)


@pytest.mark.parametrize("more", [b"", b', "targets": [1]', b', "targets": {"openai/a": 1}'])
def test_a_bare_decision_is_one(more: bytes) -> None:
    said = b'{"order": ["' + MIDDLE.encode() + b'"]' + more + b"}"

    async def go() -> None:
        async with ReplyServer(reply(200, said)) as server:
            lite = Lite(plugin(server.url))
            assert await lite.attempt() == [MIDDLE]
            assert set(lite.own["probabilities"].values()) == {None}

    play(go)


@pytest.mark.parametrize(
    "wrong", [{"lam": 2.0}, {"timeout": 0.0}, {"gateway": "ftp://a"}, {"api_key_env": "NOT_SET"}]
)
def test_wrong_options_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        plugin(NOBODY, **wrong)
