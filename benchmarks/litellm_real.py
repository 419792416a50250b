"""LiteLLM itself, before the strategy and beside the importer: what holds with its version.

Most tests make do with a stand-in, since LiteLLM takes seconds to load. This says which of the
things that the strategy, the importer and the guide rely on hold with the LiteLLM that is
installed, such as another version in an environment of its own:

    python -m venv lite && lite/bin/pip install litellm -e packages/router -e packages/gateway
    lite/bin/python -m benchmarks.litellm_real
"""

import argparse
import asyncio
import importlib.util
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, final

import openai
import yaml

from benchmarks._litellm_world import World, count_decisions, refusing, unheard, world
from prefill_router.targets import KNOWN
from prefill_router_gateway.litellm import PrefillRouterStrategy, SpentError, import_config

TURNS = [{"role": "user", "content": "hi"}]
OTHERS = ("azure", "gemini", "ollama", "deepseek")
"""Providers that are asked elsewhere than LiteLLM asks them; see known.py."""


def litellm() -> ModuleType:
    """LiteLLM, set to download nothing and to log errors alone."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    library = importlib.import_module("litellm")
    library.__dict__["suppress_debug_info"] = True
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    logging.getLogger("LiteLLM Router").setLevel(logging.CRITICAL)
    return library


@final
class Checks:
    """What was seen."""

    def __init__(self) -> None:
        self.failed = 0

    def equal(self, what: str, actual: object, wanted: object) -> None:
        """Say what was seen, and what it should have been."""
        right = actual == wanted
        self.failed += not right
        print(f"{'yes' if right else 'NO '} {what}" + ("" if right else f": {actual!r}"))


@final
class RoutedClient:
    """A Router of LiteLLM with a strategy, and what comes of requests."""

    def __init__(
        self, library: ModuleType, place: World, *down: str, gateway: str = "", **options: Any
    ) -> None:
        cheap, middle, large = place.targets
        rows = [
            place.deployment(group, model, base=unheard() if model in down else "")
            for group, model in (
                *(("auto", "spare"), ("other", "other")),
                *((cheap, "small"), (middle, "mid"), (large, "large")),
            )
        ]
        self.router = library.Router(model_list=rows, num_retries=2, retry_after=0)
        where = {} if "router" in options else {"gateway": gateway or place.gateway}
        chosen = PrefillRouterStrategy(
            self.router, **{"lam": 0.0, "timeout": 60.0, **where, **options}
        )
        newer = getattr(self.router, "register_plugin", None)
        (newer or self.router.set_custom_routing_strategy)(chosen)

    def ask(self, model: str = "auto", **options: Any) -> str:
        """The name of the model that answers a call that isn't awaited."""
        reply = self.router.completion(model, TURNS, **options)
        if options.get("stream"):
            return "".join(chunk.choices[0].delta.content or "" for chunk in reply)
        return str(reply.choices[0].message.content)

    async def ask_async(self, model: str = "auto", **options: Any) -> str:
        """The name of the model that answers an awaited call."""
        reply = await self.router.acompletion(model, TURNS, **options)
        if options.get("stream"):
            return "".join([chunk.choices[0].delta.content or "" async for chunk in reply])
        return str(reply.choices[0].message.content)


def error_of(call: Callable[[], object]) -> str:
    """The name of the error that a call raises."""
    try:
        call()
    except (openai.OpenAIError, SpentError) as error:
        return type(error).__name__
    return ""


async def check_awaited(client: RoutedClient, checks: Checks) -> None:
    """Calls that are awaited, and those that no decision is asked for."""
    checks.equal("awaited", await client.ask_async(), "small")
    checks.equal("an awaited stream", await client.ask_async(stream=True), "small")
    text = await client.router.atext_completion(model="auto", prompt="hi")
    checks.equal("a text completion", text.choices[0].text, "small")
    for name, fields in (
        ("aresponses", {"input": "hi"}),
        ("aembedding", {"input": ["hi"]}),
        ("amoderation", {"input": "hi"}),
        ("aimage_generation", {"prompt": "hi"}),
        ("aspeech", {"input": "hi", "voice": "x"}),
    ):
        # the models know no such call, and then cool down; decisions are counted
        with suppress(openai.OpenAIError, ValueError):
            await getattr(client.router, name)(model="auto", num_retries=0, **fields)


def check_strategy(library: ModuleType, folder: Path, checks: Checks) -> None:
    """Which targets the real Router asks."""
    with world(folder) as place:
        client = RoutedClient(library, place)
        checks.equal("the cheapest at lam 0", client.ask(), "small")
        checks.equal("a stream", client.ask(stream=True), "small")
        asyncio.run(check_awaited(client, checks))
        expensive = RoutedClient(library, place, lam=1.0)
        checks.equal("the most probable at lam 1", expensive.ask(), "large")
        checks.equal("other groups go as before", client.ask("other"), "other")
        by_name = client.ask("openai/large", specific_deployment=True)
        checks.equal("so do requests for one deployment", by_name, "large")
        local = RoutedClient(library, place, router=place.router)
        checks.equal("a router in this process", local.ask(), "small")
        _check_failures(library, place, checks)
    expected = {"chat": 12, "responses": 1}  # two of each request that a target was down for
    checks.equal(
        "decisions are asked for chats and responses alone", count_decisions(folder), expected
    )


def _check_failures(library: ModuleType, place: World, checks: Checks) -> None:
    down = RoutedClient(library, place, "small")
    checks.equal("a target that is down is followed by the next", down.ask(), "mid")
    checks.equal("also where awaited", asyncio.run(down.ask_async()), "mid")
    cooling = RoutedClient(library, place)
    with suppress(openai.OpenAIError):  # LiteLLM cools a deployment down that has no such call
        cooling.router.embedding(model=place.targets[0], input=["hi"], num_retries=0)
    checks.equal("so is a target that cools down", cooling.ask(), "mid")
    checks.equal("and where awaited", asyncio.run(cooling.ask_async()), "mid")
    alone = RoutedClient(library, place, gateway=unheard().removesuffix("/v1"))
    checks.equal("without a gateway the group's own deployments", alone.ask(), "spare")
    with refusing() as (url, requests):
        refused = RoutedClient(library, place, gateway=url)
        checks.equal("a refusal is raised", error_of(refused.ask), SpentError.__name__)
        checks.equal("and not asked for again", len(requests), 1)


def check_providers(library: ModuleType, checks: Checks) -> None:
    """Names, addresses and key variables of providers."""
    for variable in [name for name in os.environ if name.endswith(("_API_KEY", "_API_BASE"))]:
        del os.environ[variable]
    wrong: dict[str, object] = {}
    for name, defaults in KNOWN.items():
        if defaults.key_env:
            os.environ[defaults.key_env] = "sk-test"
        _, provider, key, base = library.get_llm_provider(f"{name}/x")
        if defaults.key_env:
            del os.environ[defaults.key_env]
        keyless = key is None and base is None  # then main.py knows both
        elsewhere = base not in (None, defaults.base_url) and name not in OTHERS
        unkeyed = defaults.key_env is not None and not keyless and key != "sk-test"
        if provider != name or elsewhere or unkeyed:
            wrong[name] = (provider, base)
    checks.equal(f"{len(KNOWN)} providers are where LiteLLM asks them", wrong, {})


CONFIG: Mapping[str, Any] = {
    "model_list": [
        {
            "model_name": "dear",
            "litellm_params": {"model": "gpt-4.1", "rpm": 60, "tpm": 9000, "timeout": 30},
            "model_info": {
                **{"id": "dear", "max_input_tokens": 1_047_576, "supports_vision": True},
                **{"input_cost_per_token": 2e-6, "output_cost_per_token": "8e-6"},
            },
        },
        {
            "model_name": "own",
            "litellm_params": {
                **{"model": "hosted_vllm/Qwen/Qwen3-8B", "api_base": "http://127.0.0.1:1/v1"},
                **{"input_cost_per_token": 1e-7, "output_cost_per_token": 4e-7},
                "max_parallel_requests": 4,
            },
            "model_info": {"id": "own", "input_cost_per_token": 9e-6, "output_cost_per_token": 0},
        },
        {"model_name": "fast", "litellm_params": {"model": "groq/llama"}, "model_info": {}},
    ]
}


def check_importer(library: ModuleType, folder: Path, checks: Checks) -> None:
    """One configuration, imported and given to the Router."""
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(CONFIG)))
    pool = import_config(folder / "config.yaml", environment={}).pool
    os.environ["OPENAI_API_KEY"] = os.environ["GROQ_API_KEY"] = "sk-test"
    router = library.Router(model_list=[dict(row) for row in CONFIG["model_list"]])
    registry = getattr(router, "registry", None)
    rows = router.model_list if registry is None else registry().all()
    for row in rows:
        name, params, info = row["model_name"], row["litellm_params"], row["model_info"]
        target, provider = pool[name], pool.provider_of(name)
        model, provider_name, _, base = library.get_llm_provider(
            params["model"], api_base=params.get("api_base")
        )
        checks.equal(
            f"{name}: model, provider and address",
            (target.model, provider.name, provider.base_url),
            (model, provider_name, base or "https://api.openai.com/v1"),
        )
        checks.equal(
            f"{name}: limits",
            (provider.requests_per_minute, provider.tokens_per_minute),
            (params.get("rpm"), params.get("tpm")),
        )
        if target.input_price is not None:
            priced = library.get_model_info(info["id"])
            prices = (priced["input_cost_per_token"], priced["output_cost_per_token"])
            checks.equal(
                f"{name}: prices",
                (target.input_price, target.output_price),
                tuple(round(float(price) * 1_000_000, 9) for price in prices),
            )


def main() -> None:
    """Run all checks."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    if importlib.util.find_spec("litellm") is None:
        print("LiteLLM isn't installed here; see the top of this file")
        return
    library, checks = litellm(), Checks()
    print(f"LiteLLM {importlib.import_module('litellm._version').version}")
    with tempfile.TemporaryDirectory() as folder:
        check_strategy(library, Path(folder), checks)
        check_providers(library, checks)
        check_importer(library, Path(folder), checks)
    raise SystemExit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
