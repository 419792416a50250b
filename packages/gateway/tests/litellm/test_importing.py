"""Import of LiteLLM's configuration."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from packages.router.tests.commands import check_refused, run_ok
from prefill_router.errors import ConfigError
from prefill_router.targets import Provider, RequestOptions, read_pool
from prefill_router_gateway.litellm import (
    ImportedConfig,
    LitellmProxy,
    ModelList,
    import_config,
    model_list,
)
from prefill_router_gateway.litellm.deployments import KNOWN
from prefill_router_gateway.litellm.model_list import COPY_DATE, read_copy, write_copy
from prefill_router_gateway.settings import read_settings

CONFIG = """
model_list:
  - model_name: large
    litellm_params:
      model: openai/gpt-4.1
      api_key: os.environ/LAB_OPENAI
      timeout: 300
      stream_timeout: 20
      weight: 2
    model_info:
      id: one
      mode: chat
      input_cost_per_token: 0.000002
      output_cost_per_token: 8e-6
      cache_read_input_token_cost: 5e-07
      max_input_tokens: 1047576
      max_output_tokens: 32768
      supports_vision: true
      supports_function_calling: true
      supports_response_schema: true
      supports_audio_input: false
      tpm_class: gold
  - model_name: large
    litellm_params:
      model: azure/gpt-41
      api_base: https://x.openai.azure.com
      api_key: os.environ/AZURE
  - model_name: small
    litellm_params:
      model: gpt-4.1-mini
      api_key: os.environ/LAB_OPENAI
      timeout: 300
      stream_timeout: 20
    model_info: {input_cost_per_token: 0, output_cost_per_token: 0, supports_function_calling: true}
  - model_name: own
    rpm: 60
    litellm_params:
      model: hosted_vllm/Qwen/Qwen3-8B
      api_base: os.environ/LAB_VLLM
      api_key: none
      tpm: 90000
      max_parallel_requests: 4
      max_tokens: 2048
      temperature: 0.6
      extra_body: {chat_template_kwargs: {enable_thinking: false}}
  - model_name: sonnet
    litellm_params: {model: claude-sonnet-4-5, api_base: "https://proxy.example.com"}
    model_info: {input_cost_per_token: 3e-6, supports_pdf_input: true}
  - model_name: vectors
    litellm_params: {model: mistral/mistral-embed}
    model_info: {mode: embedding, input_cost_per_token: 1e-7, output_cost_per_token: 0}
  - model_name: "openai/*"
    litellm_params: {model: "openai/*", api_key: os.environ/LAB_OPENAI}
  - model_name: pictures
    litellm_params: {model: openai/dall-e-3}
    model_info: {mode: image_generation}
router_settings:
  num_retries: 2
  allowed_fails: 3
  cooldown_time: 30
  max_fallbacks: 4
  timeout: 120
  routing_strategy: latency-based-routing
  fallbacks: [{large: [small]}]
litellm_settings:
  num_retries: 9
  drop_params: true
general_settings:
  master_key: sk-very-secret
  global_max_parallel_requests: 500
environment_variables: {DB_PASSWORD: very-secret}
"""
NO_LIST = ModelList(source="no list", models={})
"""Gives nothing, so that a target has only what its file says."""
ENVIRONMENT = {"LAB_VLLM": "http://127.0.0.1:8000/v1"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path / "config.yaml"


@pytest.fixture
def example(config: Path) -> ImportedConfig:
    return import_config(config, environment=ENVIRONMENT, models=NO_LIST)


def import_value(
    tmp_path: Path,
    value: Any,
    *,
    models: ModelList | None = None,
    proxy: LitellmProxy | None = None,
) -> ImportedConfig:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(value))
    models = NO_LIST if models is None else models
    return import_config(tmp_path / "c.yaml", environment={}, models=models, proxy=proxy)


def model(name: str = "a", info: Any = None, **params: Any) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": params, "model_info": info or {}}


def test_a_model_becomes_a_target(example: ImportedConfig) -> None:
    large = example.pool["large"]
    prices = (large.input_price, large.output_price, large.cached_input_price)
    assert prices == (2.0, 8.0, 0.5)
    assert large.accepts == ("images", "tools", "json_schema")
    assert (large.context_tokens, large.request) == (1_047_576, RequestOptions(max_tokens=32_768))
    openai, azure = large.endpoints
    assert (openai.provider, openai.model, azure.model) == ("openai", "gpt-4.1", "gpt-41")
    assert example.pool.names == ("large", "small", "own", "sonnet", "vectors")
    assert example.notes["own"][0].startswith("no price; ")


def test_azure_is_called_at_its_own_endpoint_with_openais_protocol(tmp_path: Path) -> None:
    rows = [
        model("a", model="azure/x", api_base="https://lab.openai.azure.com", api_version="2024-10"),
        model("b", model="azure/y", api_base="https://lab.openai.azure.com/openai/deployments/y"),
        model("c", model="azure/z", api_base="http://box:1", api_key="os.environ/BOX"),
    ]
    result = import_value(tmp_path, {"model_list": rows})
    first, _, own = (result.pool.provider_of(name) for name in "abc")
    assert (first.base_url, first.dialect) == ("https://lab.openai.azure.com/openai/v1", "openai")
    assert first.api_key_env == "AZURE_API_KEY"
    assert result.pool.provider_of("b") is first
    assert (own.base_url, own.api_key_env) == ("http://box:1/openai/v1", "BOX")
    assert result.pool["a"].model == "x"


@pytest.mark.parametrize("provider", ["bedrock", "vertex_ai", "azure_ai"])
def test_other_protocols_are_reached_through_litellms_own_endpoint(
    tmp_path: Path, provider: str
) -> None:
    rows = [
        model("far", model=f"{provider}/x", aws_region_name="eu", vertex_project="p"),
        model("near", model="openai/y"),
    ]
    without_proxy = import_value(tmp_path, {"model_list": rows})
    assert without_proxy.pool.names == ("near",)
    assert [(item.models, "--through" in item.why) for item in without_proxy.left_out] == [
        (("far",), True)
    ]
    proxy = LitellmProxy(base_url="http://127.0.0.1:4000/v1")
    result = import_value(tmp_path, {"model_list": rows}, proxy=proxy)
    assert result.pool.names == ("far", "near")
    assert (result.pool["far"].model or "far") == "far"
    reached = result.pool.provider_of("far")
    assert (reached.base_url, reached.api_key_env) == (proxy.base_url, "LITELLM_API_KEY")
    assert f"{provider} is reached through" in result.notes["far"][0]
    assert result.left_out == ()


MODEL_LIST = ModelList(
    source="a list",
    models={
        "gpt-9": {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_input_tokens": 1000,
            "input_cost_per_token": 1e-6,
            "output_cost_per_token": "4e-06",
            "cache_read_input_token_cost": 5e-7,
            "supports_function_calling": True,
            "supports_vision": True,
        },
        "azure/gpt-9": {"litellm_provider": "azure", "mode": "chat", "input_cost_per_token": 2e-6},
        "pictures-9": {"litellm_provider": "openai", "mode": "image_generation"},
    },
)


def test_what_the_file_lacks_is_taken_from_the_list_of_models(tmp_path: Path) -> None:
    prices = {"input_cost_per_token": 0, "output_cost_per_token": 0, "supports_vision": False}
    base = {"base_model": "azure/gpt-9", "output_cost_per_token": 3e-6}
    rows = [
        model("bare", model="openai/gpt-9"),
        model("family", model="gpt-9", info=prices),
        model("renamed", model="azure/mine", api_base="http://box:1", info=base),
        model("other", model="groq/gpt-9"),
        model("pictures", model="openai/pictures-9"),
    ]
    result = import_value(tmp_path, {"model_list": rows}, models=MODEL_LIST)
    bare, family, renamed = (result.pool[name] for name in ("bare", "family", "renamed"))
    assert (bare.input_price, bare.output_price, bare.cached_input_price) == (1, 4, 0.5)
    assert (bare.accepts, bare.context_tokens) == (("images", "tools"), 1000)
    assert (family.input_price, family.output_price, family.cached_input_price) == (0, 0, None)
    assert family.accepts == ("tools",)
    assert (renamed.input_price, renamed.output_price) == (2, 3)
    assert (result.pool["other"].input_price, result.pool["other"].accepts) == (None, ())
    assert "pictures" not in result.pool.names
    assert result.listed == ("bare", "family", "renamed")


def test_the_copy_of_the_list_is_dated_and_has_tools(tmp_path: Path) -> None:
    copy = read_copy()
    assert COPY_DATE in copy.source
    result = import_value(tmp_path, {"model_list": [model(model="openai/gpt-4.1")]}, models=copy)
    assert {"tools", "images", "json_schema"} <= set(result.pool["a"].accepts)
    assert result.pool["a"].input_price == pytest.approx(2.0)
    assert result.pool["a"].context_tokens == 1_047_576


def test_the_copy_has_what_litellms_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.json").write_text(json.dumps({**MODEL_LIST.models, "sample_spec": "text"}))
    write_copy(tmp_path / "list.json", tmp_path / "models.csv")
    monkeypatch.setattr(model_list, "files", lambda _: tmp_path)
    for name in ("gpt-9", "azure/gpt-9"):
        provider = MODEL_LIST.models[name]["litellm_provider"]
        fields = {field: str(value) for field, value in MODEL_LIST.find(provider, name).items()}
        there = {f: str(value) for f, value in read_copy().find(provider, name).items()}
        assert there == fields


def test_deployments_that_share_all_limits_share_their_provider(example: ImportedConfig) -> None:
    assert example.pool.provider_of("small") is example.pool.provider_of("large")
    assert example.pool.provider_of("large") == Provider(
        name="openai",
        base_url="https://api.openai.com/v1",
        api_key_env="LAB_OPENAI",
        answer_seconds=300,
        first_token_seconds=20,
    )


def test_limits_of_a_deployment_make_a_provider_of_its_own(example: ImportedConfig) -> None:
    target = example.pool["own"]
    assert target.model == "Qwen/Qwen3-8B"
    assert target.request.max_tokens == 2048
    assert target.request.temperature == 0.6
    assert target.request.extra_body == {"chat_template_kwargs": {"enable_thinking": False}}
    assert example.pool.provider_of("own") == Provider(
        name="hosted_vllm",
        base_url="http://127.0.0.1:8000/v1",
        dialect="vllm",
        concurrency=4,
        requests_per_minute=60,
        tokens_per_minute=90_000,
        answer_seconds=120,  # the file's
    )


def test_what_is_known_of_a_provider_is_filled_in(example: ImportedConfig) -> None:
    sonnet = example.pool.provider_of("sonnet")
    assert sonnet.base_url == "https://proxy.example.com/v1"
    assert sonnet.dialect == "anthropic"
    assert sonnet.api_key_env is None  # its key isn't sent to an address of somebody else
    assert example.pool["sonnet"].accepts == ("files",)
    assert example.pool["sonnet"].input_price is None
    assert "one of two prices" in example.notes["sonnet"][0]
    assert example.pool.provider_of("vectors").api_key_env == "MISTRAL_API_KEY"
    assert example.pool.serves("vectors") == ("embeddings",)


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_provider_makes_a_target_that_is_served(tmp_path: Path, name: str) -> None:
    base = {} if KNOWN[name].base_url else {"api_base": "http://127.0.0.1:1/v1"}
    pool = import_value(tmp_path, {"model_list": [model(model=f"{name}/x/y", **base)]}).pool
    assert pool["a"].model == "x/y"
    assert pool.serves("a")
    assert pool.provider_of("a").api_key_env == KNOWN[name].key_env


def test_prices_are_exact(tmp_path: Path) -> None:
    for text in ("1.1e-07", "3e-06", 0.00000015, "0.0000006", 1e-5, "7.5e-8"):
        info = {"input_cost_per_token": text, "output_cost_per_token": text}
        target = import_value(tmp_path, {"model_list": [model(model="openai/x", info=info)]}).pool[
            "a"
        ]
        assert target.input_price == float(Decimal(str(text)) * 1_000_000)
        assert target.input_price == target.output_price


def test_a_price_with_the_model_comes_before_one_that_is_told_about_it(tmp_path: Path) -> None:
    with_model = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6}
    info = {"input_cost_per_token": 2e-6, "cache_read_input_token_cost": 5e-7}
    rows = [model(model="openai/x", info=info, **with_model)]
    target = import_value(tmp_path, {"model_list": rows}).pool["a"]
    assert (target.input_price, target.output_price, target.cached_input_price) == (1, 4, 0.5)


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("gpt-3.5-turbo-instruct", "text-completion-openai"),
        ("text-embedding-3-small", "openai"),
        ("ft:gpt-4o:lab", "openai"),
        ("moonshot/kimi", "moonshot"),
    ],
)
def test_models_go_to_the_provider_that_litellm_asks(
    tmp_path: Path, name: str, provider: str
) -> None:
    pool = import_value(tmp_path, {"model_list": [model(model=name)]}).pool
    assert pool.provider_of("a").name == provider


def test_settings_have_counterparts(example: ImportedConfig, tmp_path: Path) -> None:
    assert example.settings == {
        "failures": {"retries": 2, "targets": 5, "breaker_failures": 4, "breaker_seconds": 30.0},
        "limits": {"requests": 500},
    }
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(dict(example.settings)))
    assert read_settings(tmp_path / "gateway.yaml").failures.breaker_failures == 4


def test_extremes_stay_in_the_settings_ranges(tmp_path: Path) -> None:
    extreme = {"num_retries": 99, "allowed_fails": 0, "cooldown_time": 1e9, "max_fallbacks": 1e4}
    value = {"model_list": [model(model="openai/x")], "litellm_settings": extreme}
    settings = import_value(tmp_path, value).settings
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(dict(settings)))
    failures = read_settings(tmp_path / "gateway.yaml").failures
    assert (failures.retries, failures.breaker_failures, failures.targets) == (10, 1, 100)


def test_what_is_left_out_is_told_without_its_value(example: ImportedConfig) -> None:
    reasons = {(item.what, item.models): item.why for item in example.left_out}
    assert reasons["model_info.tpm_class", ("large",)] == "has no counterpart"
    assert "stands for many" in reasons["model_list", ("openai/*",)]
    assert "its mode isn't routed" in reasons["model_list", ("pictures",)]
    for what in ("general_settings.master_key", "router_settings.fallbacks"):
        assert reasons[what, ()]
    assert reasons["environment_variables", ()]
    assert "secret" not in repr(example)
    assert not [item for item in example.left_out if "num_retries" in item.what]


def test_several_deployments_of_a_name_are_the_endpoints_of_one_target(tmp_path: Path) -> None:
    prices = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    able = {"supports_vision": True, "supports_function_calling": True, "max_input_tokens": 9000}
    rows = [
        model(model="bedrock/x"),
        model(model="groq/y", weight=3, info={**prices, **able}),
        model(model="xai/z", order=2, info={**prices, "supports_vision": True}),
        model(model="groq/w", info={"input_cost_per_token": 0, "output_cost_per_token": 0}),
    ]
    result = import_value(tmp_path, {"model_list": rows[:3]})
    groq, xai = result.pool["a"].endpoints
    assert (groq.name, groq.model, groq.weight, groq.priority) == ("groq", "y", 3, 0)
    assert (xai.name, xai.model, xai.weight, xai.priority) == ("xai", "z", 1, 2)
    assert (groq.input_price, xai.input_price, result.pool["a"].input_price) == (None, None, 1)
    assert result.pool["a"].accepts == ("images",)
    assert result.pool["a"].context_tokens == 9000
    (left,) = result.left_out
    assert "bedrock has a protocol of its own" in left.why
    *_, free = import_value(tmp_path, {"model_list": rows[1:]}).pool["a"].endpoints
    assert (free.name, free.provider, free.input_price) == ("groq-2", "groq", 0)


def test_an_unknown_provider_with_an_address_is_taken_at_its_word(tmp_path: Path) -> None:
    rows = [model(model="newcomer/x", api_base="http://127.0.0.1:1/v1", api_key="EMPTY")]
    result = import_value(tmp_path, {"model_list": rows})
    assert result.pool["a"].model == "x"
    assert "assumed to use OpenAI's protocol" in result.notes["a"][0]
    ollama = import_value(
        tmp_path, {"model_list": [model(model="ollama/x", api_base="http://box:11434")]}
    )
    assert ollama.pool.provider_of("a").base_url == "http://box:11434/v1"


UNREACHABLE = {
    "u": ({"model": "newcomer/x"}, "newcomer has no fixed address"),
    "v": ({"model": "hosted_vllm/x"}, "hosted_vllm has no fixed address"),
    "z": ({"model": "azure/x"}, "azure has no fixed address"),
    "n": ({"model": "llama"}, "its model has no provider"),
    "g": ({"model": "gemini-2.5-pro"}, "vertex_ai has a protocol of its own"),
    "e": ({"model": "openai/x", "api_base": "os.environ/NOWHERE"}, "variable that isn't set"),
    "o": ({"model": "openai/"}, "is only a provider"),
    "m": ({}, "has no litellm_params.model"),
}


def test_what_can_not_be_called_is_left_out_and_the_rest_is_imported(tmp_path: Path) -> None:
    rows = [model(name, **params) for name, (params, _) in UNREACHABLE.items()]
    result = import_value(tmp_path, {"model_list": [*rows, model("good", model="openai/x")]})
    assert result.pool.names == ("good",)
    why = {item.models[0]: item.why for item in result.left_out}
    assert why.keys() == UNREACHABLE.keys()
    for name, (_, reason) in UNREACHABLE.items():
        assert reason in why[name]
    with pytest.raises(ConfigError) as caught:
        import_value(tmp_path, {"model_list": rows})
    assert all(reason in str(caught.value) for _, reason in UNREACHABLE.values())


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    rows = [
        model("k", model="openai/x", api_key="sk-very-secret"),
        model("p", model="openai/x", info={"input_cost_per_token": "very-secret"}),
        model("b", model="openai/x", api_base="http://me:very-secret@x/v1"),
        model("r", model="openai/x", rpm=-1),
        {"litellm_params": {}},
        3,
    ]
    with pytest.raises(ConfigError) as caught:
        import_value(tmp_path, {"model_list": rows, "router_settings": {"num_retries": "many"}})
    message = str(caught.value)
    for part in (
        "model 'k': api_key contains a key",
        "model 'p': input_cost_per_token isn't a number",
        "password in its base_url",
        "model 'r': rpm must be above 0",
        "model_list[4] has no model_name",
        "model_list[5] has no model_name",
        "router_settings: num_retries isn't a number",
    ):
        assert part in message
    assert "secret" not in message


def test_a_key_is_refused_even_where_it_would_not_be_used(tmp_path: Path) -> None:
    rows = [model(model="openai/x"), model(model="openai/y", api_key="sk-very-secret")]
    with pytest.raises(ConfigError, match="contains a key") as caught:
        import_value(tmp_path, {"model_list": rows})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "no model_list"),
        ({"model_list": {}}, "no model_list"),
        ({"model_list": []}, "no entry of model_list"),
        ({"model_list": [], "router_settings": [1]}, "router_settings isn't a mapping"),
        ({"model_list": [], "router_settings": {"num_retries": True}}, "isn't a number"),
        ({"model_list": [], "litellm_settings": {"allowed_fails": 1.5}}, "isn't a whole number"),
        ({"model_list": [model(model="openai/x", info=[1])]}, "isn't a mapping"),
        ({"model_list": [model(model="openai/x", temperature="nan")]}, "isn't a number"),
        ({"model_list": [model(model="openai/x", info={"supports_vision": "y"})]}, "neither true"),
        ({"model_list": [model(model="openai/x", api_key=7)]}, "contains a key"),
        ({"model_list": [model(model="openai/")]}, "is only a provider"),
        ({"model_list": [{"model_name": "a", "litellm_params": "x"}]}, "isn't a mapping"),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, value: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        import_value(tmp_path, value)


@pytest.mark.slow
def test_the_command_writes_a_pool_and_settings(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_VLLM", ENVIRONMENT["LAB_VLLM"])
    pool, settings = tmp_path / "pool.yaml", tmp_path / "gateway.yaml"
    output = run_ok("import-litellm", config, "--out", pool, "--settings", settings)
    assert "keys are read from AZURE, LAB_OPENAI, MISTRAL_API_KEY" in output
    words = " ".join(output.split())
    assert f"next: prefill-router serve --pool {pool} --config {settings} --default large" in words
    assert read_pool(pool) == import_config(config, environment=ENVIRONMENT).pool
    assert read_settings(settings).failures.retries == 2
    report = json.loads(run_ok("import-litellm", config, "--out", pool, "--json"))
    assert report["targets"] == list(read_pool(pool).names)
    assert report["settings"]["limits"] == {"requests": 500}
    assert {"what", "why", "models"} == set(report["left_out"][0])


def test_the_command_refuses_places_that_would_lose_something(config: Path) -> None:
    check_refused("LiteLLM's own file", "import-litellm", config, "--out", config, code=2)
    pool = config.with_name("pool.yaml")
    words = ("import-litellm", config, "--out")
    check_refused("give two different files", *words, pool, "--settings", pool, code=2)
    check_refused(r"name a file such as pool\.yaml", *words, "pool.csv", code=2)
    check_refused("no such file", "import-litellm", config.with_name("x.yaml"), "--out", pool)
    assert not pool.exists()
