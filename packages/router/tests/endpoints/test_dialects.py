"""Requests to a target in each dialect, as they are sent."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from packages.router.tests.fakes.loopback_endpoint import GOOD, Endpoint, ask_endpoint, pool_of
from prefill_router.data import Message
from prefill_router.endpoints import ask_once, request_parameters
from prefill_router.endpoints.request_body import reasoning_fields, request_messages
from prefill_router.errors import ConfigError
from prefill_router.targets import (
    DIALECTS,
    Dialect,
    Endpoint as ApiEndpoint,
    RequestOptions,
    Target,
)
from prefill_router.targets.provider import TRAITS, DialectTraits
from prefill_router_minipool.server import ScriptedModel, serve

ALWAYS = {"model", "stream", "stream_options"}


def sent_fields(dialect: Dialect, model: str = "m", **options: Any) -> dict[str, Any]:
    """The fields that options lead to, without those of every request."""
    target = Target(name=model, request=RequestOptions(**{"max_tokens": 4000, **options}))
    fields = request_parameters(target, dialect)
    assert fields["model"] == model
    assert fields["stream"] is True
    assert fields["stream_options"] == {"include_usage": True}
    return {name: value for name, value in fields.items() if name not in ALWAYS}


PLAIN: dict[Dialect, dict[str, Any]] = {
    "openai": {"max_completion_tokens": 4000},
    "anthropic": {"max_tokens": 4000},
    "gemini": {"max_tokens": 4000},
    "vllm": {"max_tokens": 4000},
    "sglang": {"max_tokens": 4000},
    "openrouter": {"max_tokens": 4000, "usage": {"include": True}},
    "deepseek": {"max_tokens": 4000},
    "qwen": {"max_tokens": 4000},
    "nemotron": {"max_tokens": 4000},
}
EFFORT: dict[Dialect, dict[str, Any] | None] = {
    "openai": {"reasoning_effort": "high"},
    "anthropic": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    "gemini": {"reasoning_effort": "high"},
    "vllm": {"reasoning_effort": "high"},
    "sglang": {"reasoning_effort": "high"},
    "openrouter": {"reasoning": {"effort": "high"}},
    "deepseek": {"reasoning_effort": "high"},
    "qwen": None,
    "nemotron": None,
}
BOTH_NAMES = {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
THINKING: dict[Dialect, dict[str, Any] | None] = {
    "openai": None,
    "anthropic": {"thinking": {"type": "adaptive"}},
    "gemini": None,
    "vllm": BOTH_NAMES,
    "sglang": BOTH_NAMES,
    "openrouter": {"reasoning": {"enabled": True}},
    "deepseek": {"thinking": {"type": "enabled"}},
    "qwen": {"enable_thinking": True},
    "nemotron": {"chat_template_kwargs": {"enable_thinking": True}},
}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "seed": 3}
NO_SEED = ("anthropic", "deepseek")
TOP_K = ("vllm", "sglang", "openrouter", "qwen", "nemotron")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_requests_without_options(dialect: Dialect) -> None:
    assert sent_fields(dialect) == PLAIN[dialect]


@pytest.mark.parametrize(
    ("table", "option"),
    [(EFFORT, {"reasoning_effort": "high"}), (THINKING, {"enable_thinking": True})],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_reasoning(
    dialect: Dialect, table: Mapping[Dialect, dict[str, Any] | None], option: dict[str, Any]
) -> None:
    fields = table[dialect]
    if fields is None:
        with pytest.raises(ConfigError, match=f"'{dialect}' has no field; leave it out"):
            sent_fields(dialect, **option)
    else:
        assert sent_fields(dialect, **option) == PLAIN[dialect] | fields


BUDGET: dict[Dialect, dict[str, Any] | None] = {
    "openai": None,
    "anthropic": None,  # an earlier Claude takes one
    "gemini": {"extra_body": {"google": {"thinking_config": {"thinking_budget": 512}}}},
    "vllm": {"thinking_token_budget": 512},
    "sglang": {"chat_template_kwargs": {"thinking_budget": 512}},
    "openrouter": {"reasoning": {"max_tokens": 512}},
    "deepseek": None,
    "qwen": {"thinking_budget": 512},
    "nemotron": None,
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_budgets(dialect: Dialect) -> None:
    fields = BUDGET[dialect]
    if fields is None:
        with pytest.raises(ConfigError, match=r"thinking.budget"):
            sent_fields(dialect, thinking_budget=512)
    else:
        assert sent_fields(dialect, thinking_budget=512) == PLAIN[dialect] | fields


def effort(dialect: Dialect, name: str, endpoint: ApiEndpoint = "chat") -> dict[str, Any]:
    """The fields that an effort of a target adds."""
    target = Target(name=f"m:{name}", effort=name, request=RequestOptions(max_tokens=4000))
    assert request_parameters(target, dialect)["model"] == "m"
    return reasoning_fields(target, dialect, endpoint)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_effort_of_a_target_is_said_in_its_dialect(dialect: Dialect) -> None:
    off, low = effort(dialect, "none"), effort(dialect, "low")
    switch, levels = THINKING[dialect], EFFORT[dialect]
    assert off == (added_fields(dialect, enable_thinking=False) if switch else {REASONS: "none"})
    assert off != low
    if levels is not None:
        assert low == added_fields(
            dialect, reasoning_effort="low", **({"enable_thinking": True} if switch else {})
        )
    else:
        assert low == switch
    if BUDGET[dialect] is not None:
        assert effort(dialect, "512") == added_fields(
            dialect, thinking_budget=512, **({"enable_thinking": True} if switch else {})
        )


REASONS = "reasoning_effort"


def added_fields(dialect: Dialect, **options: Any) -> dict[str, Any]:
    """The fields that options add to a plain request."""
    plain = PLAIN[dialect]
    return {
        name: value for name, value in sent_fields(dialect, **options).items() if name not in plain
    }


def test_an_effort_is_said_in_responses_and_messages() -> None:
    assert effort("openai", "low", "responses") == {"reasoning": {"effort": "low"}}
    assert effort("openrouter", "low", "responses")["reasoning"]["effort"] == "low"
    adaptive = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    assert effort("anthropic", "low", "messages") == adaptive


def test_an_effort_that_a_dialect_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the effort '512', for which .* use an effort by name"):
        effort("deepseek", "512")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_sampling(dialect: Dialect) -> None:
    seed = {} if dialect in NO_SEED else {"seed": 3}
    sampling = {"temperature": 0.5, "top_p": 0.9, **seed}
    assert sent_fields(dialect, **SAMPLING) == PLAIN[dialect] | sampling
    if dialect in TOP_K:
        assert sent_fields(dialect, top_k=7) == PLAIN[dialect] | {"top_k": 7}
    else:
        with pytest.raises(ConfigError, match="sets top_k"):
            sent_fields(dialect, top_k=7)


def test_switched_off() -> None:
    assert sent_fields("deepseek", enable_thinking=False)["thinking"] == {"type": "disabled"}
    assert sent_fields("anthropic", enable_thinking=False)["thinking"] == {"type": "disabled"}
    assert sent_fields("openrouter", enable_thinking=False)["reasoning"] == {"enabled": False}
    assert sent_fields("qwen", enable_thinking=False)["enable_thinking"] is False


def test_an_effort_and_a_switch_together() -> None:
    fields = sent_fields("openrouter", enable_thinking=True, reasoning_effort="low")
    assert fields["reasoning"] == {"enabled": True, "effort": "low"}


@pytest.mark.parametrize(
    ("model", "is_adaptive"),
    [
        ("claude-opus-4-6", True),
        ("claude-opus-4.7", True),
        ("claude-sonnet-5", True),
        ("claude-something-new", True),
        ("claude-opus-4-10", True),
        ("claude-haiku-4-5-20251001", False),
        ("claude-opus-4-20250514", False),
        ("claude-3-7-sonnet-20250219", False),
        ("anthropic/Claude-Sonnet-4.5", False),
    ],
)
def test_claude_by_its_version(model: str, is_adaptive: bool) -> None:
    thinking = sent_fields("anthropic", model, reasoning_effort="medium")["thinking"]
    adaptive, budget = {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 2000}
    assert thinking == (adaptive if is_adaptive else budget)


def test_budgets_of_claude_are_checked() -> None:
    older = "claude-sonnet-4-5"
    least = sent_fields("anthropic", older, reasoning_effort="low", max_tokens=1100)
    assert least["thinking"]["budget_tokens"] == 1024
    assert (
        sent_fields("anthropic", older, enable_thinking=True)["thinking"]["budget_tokens"] == 3200
    )
    with pytest.raises(ConfigError, match="reasoning needs more than 1024"):
        sent_fields("anthropic", older, enable_thinking=True, max_tokens=1024)
    with pytest.raises(ConfigError, match="it must be one of minimal, low"):
        sent_fields("anthropic", older, reasoning_effort="enormous")


@pytest.mark.parametrize(
    ("dialect", "model", "thinking", "sampling"),
    [
        ("qwen", "qwen3.5-122b-a10b", True, (1.0, 0.95, 20, 1.5)),
        ("qwen", "Qwen/Qwen3.6-27B", False, (0.7, 0.8, 20, 1.5)),
        ("qwen", "qwen3-32b", True, (0.6, 0.95, 20, None)),
        ("qwen", "qwen3-32b", False, (0.7, 0.8, 20, None)),
        ("qwen", "qwen-plus", True, (None, None, None, None)),
        ("nemotron", "nvidia/nemotron-3-nano-30b-a3b", True, (1.0, 1.0, None, None)),
        ("nemotron", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B", True, (1.0, 0.95, None, None)),
        ("nemotron", "nemotron-nano-v3", True, (1.0, 1.0, None, None)),
        ("nemotron", "nvidia/llama-3.3-nemotron-super-49b-v1", True, (0.6, 0.95, None, None)),
        ("nemotron", "nvidia/llama-3.3-nemotron-super-49b-v1", False, (0.0, None, None, None)),
        ("vllm", "Qwen/Qwen3-32B", True, (None, None, None, None)),
    ],
)
def test_recommended_sampling(
    dialect: Dialect, model: str, thinking: bool, sampling: tuple[float | None, ...]
) -> None:
    fields = sent_fields(dialect, model, enable_thinking=thinking)
    names = ("temperature", "top_p", "top_k", "presence_penalty")
    assert tuple(fields.get(name) for name in names) == sampling


def test_sampling_of_ones_own_keeps_the_recommended_out() -> None:
    fields = sent_fields("qwen", "qwen3-32b", enable_thinking=True, temperature=0.1)
    assert (fields["temperature"], fields.get("top_p"), fields.get("top_k")) == (0.1, None, None)
    assert "temperature" not in sent_fields("qwen", "qwen3-32b")


@pytest.mark.parametrize(
    ("model", "on", "off"),
    [
        ("nvidia/llama-3.1-nemotron-nano-8b-v1", "detailed thinking on", "detailed thinking off"),
        ("nvidia/llama-3.3-nemotron-super-49b-v1.5", "/think", "/no_think"),
        ("nvidia/nvidia-nemotron-nano-9b-v2", "/think", "/no_think"),
        ("nvidia/nemotron-3-super-120b-a12b", None, None),
    ],
)
def test_system_prompts_that_switch_nemotron(model: str, on: str | None, off: str | None) -> None:
    for thinking, switch in ((True, on), (False, off)):
        target = Target(name=model, request=RequestOptions(enable_thinking=thinking))
        messages = request_messages(target, "nemotron", "hello")
        assert [m["content"] for m in messages] == ([switch, "hello"] if switch else ["hello"])
        assert ("chat_template_kwargs" in request_parameters(target, "nemotron")) != bool(switch)
        chat = (Message("system", "Be brief."), Message("user", "hello"))
        first = request_messages(target, "nemotron", chat)[0]
        assert first["content"] == (f"{switch}\nBe brief." if switch else "Be brief.")
    assert len(request_messages(Target(name=model), "nemotron", "hello")) == 1


def test_fields_of_ones_own_win() -> None:
    own = {"temperature": 0.2, "top_p": 0.3, "stop": ["END"]}
    assert sent_fields("vllm", temperature=1.0, extra_body=own) == PLAIN["vllm"] | own
    limit = sent_fields("openai", extra_body={"max_tokens": 9})
    assert limit == {"max_tokens": 9}
    template = {"chat_template_kwargs": {"documents": [], "thinking": False}}
    assert sent_fields("vllm", enable_thinking=True, extra_body=template)[
        "chat_template_kwargs"
    ] == {
        "enable_thinking": True,
        "thinking": False,
        "documents": [],
    }


def test_the_whole_request_goes_over_the_wire() -> None:
    chat = (Message("system", "Be brief."), Message("user", "Grüße, 你好 \U0001f600?"))

    async def run() -> None:
        async with Endpoint(GOOD) as endpoint:
            await ask_endpoint(
                endpoint, chat, environment={"A_KEY": "sk-1"}, api_key_env="A_KEY", dialect="openai"
            )
            (request,) = endpoint.requests
        assert request.path == "/v1/chat/completions"
        assert request.headers["authorization"] == "Bearer sk-1"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["accept-encoding"] == "identity"
        assert request.body == {
            "model": "tiny",
            "messages": [{"role": m.role, "content": m.content} for m in chat],
            "max_completion_tokens": 64,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    asyncio.run(run())


@pytest.mark.parametrize(("dialect", "is_sent"), [("openai", True), ("vllm", False)])
def test_ones_organisation_is_told_to_openai_alone(
    dialect: Dialect, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-them")

    async def run() -> None:
        async with Endpoint(GOOD) as endpoint:
            await ask_endpoint(endpoint, dialect=dialect)
            headers = endpoint.requests[0].headers
        assert ("openai-organization" in headers) == is_sent
        assert headers["authorization"] == "Bearer none"

    asyncio.run(run())


def test_a_dialect_is_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = DialectTraits(
        serves=("chat",), effort=lambda effort: {"depth": effort}, always={"safe_prompt": False}
    )
    assert set(DIALECTS) == set(TRAITS)
    monkeypatch.setitem(TRAITS, "deepseek", row)
    text = "two and two</think>It is four."
    with serve([ScriptedModel("tiny", {"What is 2 + 2?": text})]) as server:
        options = RequestOptions(max_tokens=64, reasoning_effort="high", seed=3)
        pool = pool_of(server.base_url, dialect="deepseek", request=options)
        reply = ask_once(pool, "tiny", "What is 2 + 2?")
        body = server.log[0].options
    assert (reply.text, reply.reasoning) == ("It is four.", "two and two")
    assert (body["depth"], body["safe_prompt"], body["seed"]) == ("high", False, 3)
    assert pool.serves("tiny") == ("chat",)
