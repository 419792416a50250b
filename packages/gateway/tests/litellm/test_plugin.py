"""The plugin for LiteLLM: the candidates that it leaves, and the outcomes that it reports."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from packages.gateway.tests.litellm.test_strategy import NOBODY, ReplyServer, reply, unused_address
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

CHEAP, MIDDLE, EXPENSIVE = TARGETS
TIMEOUT = 120.0
MODELS = {f"openai/{CHEAP}": CHEAP, MIDDLE: MIDDLE, "azure/large": EXPENSIVE}
TARGET_NAMES = {"azure/large": EXPENSIVE}
BEGAN = datetime(2026, 11, 22, tzinfo=UTC)
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 10},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GatewayFiles:
    settings = {"logs": {"level": "warning"}, "routing": {"deadline_seconds": TIMEOUT}}
    return write_gateway_files(tmp_path_factory.mktemp("plugin"), NOBODY, settings=settings)


@pytest.fixture(scope="module")
def gateway(files: GatewayFiles) -> Iterator[GatewayThread]:
    with gateway_thread(files.paths(threads=1)) as run:
        yield run


class Lite:
    """LiteLLM's side of one request: it calls a plugin before each attempt, and then the event."""

    def __init__(self, plugin: PrefillRouterPlugin, *models: str, messages: Any = "hi") -> None:
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        self.plugin, self.models, self.messages = plugin, list(models or MODELS), turns
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
    def decision(self) -> Any:
        return self.metadata["routing_plugin_signals"]["prefill_router"]

    async def fail(self, model: str, status: int | None = 500) -> None:
        """An attempt fails; LiteLLM keeps the error on the object that later attempts share."""
        self.error = ConnectionError()
        if status is not None:
            vars(self.error)["status_code"] = status
        self.metadata["previous_models"] = (*self.metadata.get("previous_models", ()), {})
        await self.event(model, "failure", {})

    async def event(self, model: str, status: str, usage: Any, **more: Any) -> None:
        log_entry = {"model": model, "status": status, "metadata": {"usage_object": usage}, **more}
        await self.plugin.ended(
            {
                "litellm_params": {"metadata": self.metadata, "litellm_metadata": None},
                "standard_logging_object": log_entry,
                "exception": self.error,
                "stream": True,
                "completion_start_time": BEGAN + timedelta(seconds=0.25),
            },
            response_obj=None,
            start_time=BEGAN,
            end_time=BEGAN + timedelta(seconds=0.5),
        )


_plugins: list[PrefillRouterPlugin] = []


def make_plugin(url: str, **options: Any) -> PrefillRouterPlugin:
    """A plugin that waits for the gateway; `run_and_close` closes it."""
    arguments = {"gateway": url, "targets": TARGET_NAMES, "timeout": TIMEOUT, **options}
    _plugins.append(PrefillRouterPlugin(**arguments))
    return _plugins[-1]


def run_and_close(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario, then close the plugins that it made."""

    async def run() -> None:
        try:
            await scenario()
        finally:
            while _plugins:
                await _plugins.pop().aclose()

    asyncio.run(run())


def outcomes(files: GatewayFiles, *decisions: str) -> list[Any]:
    receipts = {receipt.choice.id: receipt for receipt in read_receipts(files.url)}
    return [receipts[decision] for decision in decisions]


def test_the_chosen_target_is_left_with_all_its_deployments(
    gateway: GatewayThread, files: GatewayFiles
) -> None:
    async def run() -> None:
        for lam, models in ((0.0, [f"openai/{CHEAP}"] * 2), (1.0, ["azure/large"])):
            lite = Lite(make_plugin(gateway.url, lam=lam), *MODELS, f"openai/{CHEAP}")
            assert await lite.attempt() == models
            decision = lite.decision
            assert (decision["target"], decision["lam"]) == (MODELS[models[0]], lam)
            assert decision["targets"] == MODELS
            right = Router.load(files.router).route("hi", lam=lam).correctness
            assert decision["probabilities"] == pytest.approx(
                {m: right[t] for m, t in MODELS.items()}
            )
            costs = [decision["costs"][model] for model in MODELS]
            assert costs == sorted(costs)
            assert costs[0] > 0
            headers = await lite.plugin.headers({"metadata": lite.metadata}, response=None)
            assert headers == {"x-prefill-router-decision-id": decision["id"]}

    run_and_close(run)


def test_what_isnt_a_choice_between_targets_stays(
    gateway: GatewayThread, files: GatewayFiles
) -> None:
    plugin = make_plugin(gateway.url, lam=0.0)

    async def run() -> None:
        await Lite(plugin).attempt()  # from now on the gateway's targets are known
        before = len(files.rows("id"))
        for models in (
            ["openai/a", "openai/b"],
            [EXPENSIVE],
            [EXPENSIVE, "openai/a"],
            [EXPENSIVE, EXPENSIVE],
        ):
            lite = Lite(plugin, *models)
            assert await lite.attempt() == models
            assert await plugin.headers({"metadata": lite.metadata}) is None
        nothing = Lite(plugin, messages=[])
        assert await nothing.attempt() == list(MODELS)
        assert len(files.rows("id")) == before

    run_and_close(run)


def test_a_decision_is_among_the_candidates(gateway: GatewayThread, files: GatewayFiles) -> None:
    plugin = make_plugin(gateway.url, lam=0.0)

    async def run() -> None:
        await Lite(plugin).attempt()
        lite = Lite(plugin, MIDDLE, "azure/large", "openai/other")
        assert await lite.attempt() == [MIDDLE]
        (receipt,) = outcomes(files, lite.decision["id"])
        assert receipt.choice.order == (MIDDLE, EXPENSIVE)

    run_and_close(run)


def test_an_attempt_that_failed_is_followed_by_another_target(
    gateway: GatewayThread, files: GatewayFiles
) -> None:
    async def run() -> None:
        lite = Lite(make_plugin(gateway.url, lam=0.0))
        attempts = []
        for _ in MODELS:
            (model,) = await lite.attempt()
            attempts.append((MODELS[model], lite.decision["id"]))
            await lite.fail(model, 429)
        assert {target for target, _ in attempts} == set(TARGETS)
        assert await lite.attempt() == [f"openai/{CHEAP}"]  # all have failed once
        await lite.event(f"openai/{CHEAP}", "success", USAGE)
        ids = [decision for _, decision in attempts]
        *failures, last = outcomes(files, *ids, lite.decision["id"])
        ends = [(r.outcome.kind, r.outcome.attempts[0].target) for r in failures]
        assert ends == [("failed", target) for target, _ in attempts]
        assert [r.outcome.status for r in failures] == [429] * 3
        assert (last.outcome.kind, last.outcome.target) == ("answered", CHEAP)

    run_and_close(run)


@pytest.mark.parametrize("status", [None, 0, 700])  # no answer's status: the gateway's 500
def test_a_late_event_is_of_its_own_attempt(
    gateway: GatewayThread, files: GatewayFiles, status: int | None
) -> None:
    async def run() -> None:
        lite = Lite(make_plugin(gateway.url, lam=0.0))
        (first,) = await lite.attempt()
        first_id = lite.decision["id"]
        lite.metadata["previous_models"] = ({},)
        (second,) = await lite.attempt()
        await lite.fail(first, status)  # only now is it logged
        await lite.event(second, "success", USAGE)
        first_receipt, second_receipt = outcomes(files, first_id, lite.decision["id"])
        assert (first_receipt.outcome.kind, first_receipt.outcome.status) == ("failed", 500)
        assert (second_receipt.outcome.kind, second_receipt.outcome.target) == (
            "answered",
            MODELS[second],
        )

    run_and_close(run)


def test_receipts_have_cost_latency_and_tokens(gateway: GatewayThread, files: GatewayFiles) -> None:
    async def run() -> None:
        lite = Lite(make_plugin(gateway.url, lam=0.0))
        (model,) = await lite.attempt()
        for cost in (0.0, 0.5):  # 0 is a price that LiteLLM doesn't know; the first report holds
            await lite.event(model, "success", USAGE, response_cost=cost)
        second_request = Lite(lite.plugin)
        (model,) = await second_request.attempt()
        await second_request.event(model, "success", USAGE, response_cost=0.25)
        first, second = outcomes(files, lite.decision["id"], second_request.decision["id"])
        assert first.cost not in (None, 0.5)
        assert second.cost == 0.25
        usage, outcome = first.outcome.usage, first.outcome
        assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (100, 10, 20)
        assert outcome.attempts[0].seconds == 0.5
        waited = outcome.total_seconds - outcome.first_byte_seconds
        assert waited == pytest.approx(0.25)

    run_and_close(run)


def test_attempts_of_others_arent_reported(gateway: GatewayThread, files: GatewayFiles) -> None:
    async def run() -> None:
        lite = Lite(make_plugin(gateway.url, lam=0.0))
        await lite.event("openai/other", "success", USAGE)
        await lite.attempt()
        await lite.event("openai/other", "success", USAGE)
        await lite.event("auto", "failure", {})  # no deployment was left
        (receipt,) = outcomes(files, lite.decision["id"])
        assert receipt.outcome.kind == "routed"

    run_and_close(run)


def test_without_a_gateway_all_candidates_stay(
    gateway: GatewayThread, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a prompt that is nobody's business"

    async def run() -> None:
        unreachable, other = make_plugin(unused_address(), lam=0.0), make_plugin(gateway.url)
        for _ in range(3):
            lite = Lite(unreachable, messages=secret)
            assert await lite.attempt() == list(MODELS)
            assert lite.metadata["routing_plugin_signals"] == {}
        (line,) = caplog.messages
        assert "can't be reached" in line
        assert secret not in line
        unreachable._gateway, other._gateway = other._gateway, unreachable._gateway
        assert len(await Lite(unreachable).attempt()) == 1
        assert caplog.messages[1:] == ["the gateway works again"]

    with caplog.at_level(logging.INFO, logger="prefill_router_gateway.litellm"):
        run_and_close(run)


def test_a_report_that_isnt_taken_is_said_once(
    gateway: GatewayThread, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        lite, unreachable = Lite(make_plugin(gateway.url, lam=0.0)), make_plugin(unused_address())
        (model,) = await lite.attempt()
        lite.plugin._gateway, unreachable._gateway = unreachable._gateway, lite.plugin._gateway
        for _ in range(2):
            await lite.event(model, "success", USAGE)

    run_and_close(run)
    (line,) = caplog.messages
    assert "outcomes aren't reported" in line


def test_a_pool_that_changed_is_learned_anew(gateway: GatewayThread) -> None:
    async def run() -> None:
        plugin = make_plugin(gateway.url, lam=0.0)
        plugin._target_names = frozenset(("gone", CHEAP))
        models = ("openai/gone", *MODELS)
        assert await Lite(plugin, *models).attempt() == list(models)
        assert await Lite(plugin, *models).attempt() == [f"openai/{CHEAP}"]

    run_and_close(run)


def test_a_spent_budget_refuses() -> None:
    async def run() -> None:
        async with ReplyServer(reply(429, b"{}")) as server:
            with pytest.raises(SpentError):
                await Lite(make_plugin(server.url)).attempt()

    run_and_close(run)


@pytest.mark.parametrize("more", [b"", b', "targets": [1]', b', "targets": {"openai/a": 1}'])
def test_a_bare_decision_is_one(more: bytes) -> None:
    body = b'{"order": ["' + MIDDLE.encode() + b'"]' + more + b"}"

    async def run() -> None:
        async with ReplyServer(reply(200, body)) as server:
            lite = Lite(make_plugin(server.url))
            assert await lite.attempt() == [MIDDLE]
            assert set(lite.decision["probabilities"].values()) == {None}

    run_and_close(run)


@pytest.mark.parametrize(
    "wrong", [{"lam": 2.0}, {"timeout": 0.0}, {"gateway": "ftp://a"}, {"api_key_env": "NOT_SET"}]
)
def test_wrong_options_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        make_plugin(NOBODY, **wrong)
