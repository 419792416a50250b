"""LiteLLM's own Router with the strategy, in the version that is installed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.server_process import TARGETS, write_gateway_files
from prefill_router_gateway.litellm import PrefillRouterStrategy

# the warnings are LiteLLM's
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CHEAP, MIDDLE, EXPENSIVE = TARGETS
TURNS = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gateway_files(
        tmp_path_factory.mktemp("real"), "http://127.0.0.1:9/v1", settings={}
    ).router


@pytest.fixture(scope="module")
def litellm() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it would be fetched
        return pytest.importorskip("litellm")


def make_router(litellm: Any, *models: str) -> Any:
    """A Router whose groups answer with their own names."""
    return litellm.Router(
        model_list=[
            {"model_name": m, "litellm_params": {"model": f"openai/{m}", "mock_response": m}}
            for m in models
        ],
        num_retries=0,
    )


@pytest.mark.parametrize("method", ["register_plugin", "set_custom_routing_strategy"])
def test_each_call_goes_where_the_strategy_says(litellm: Any, folder: Path, method: str) -> None:
    router = make_router(litellm, "auto", "other", *TARGETS)
    if not hasattr(router, method):
        pytest.skip(f"this LiteLLM has no {method}")
    answers = {}
    for lam in (0.0, 1.0):
        strategy = PrefillRouterStrategy(router, router=folder, lam=lam, timeout=60)
        getattr(router, method)(strategy)
        calls = [router.completion(model, TURNS) for model in ("auto", "other", EXPENSIVE)]
        calls.append(asyncio.run(router.acompletion("auto", TURNS)))
        calls.append(asyncio.run(router.acompletion("other", TURNS)))
        answers[lam] = [call.choices[0].message.content for call in calls]
        strategy.close()
    best = answers[1.0][0]
    assert answers[0.0] == [CHEAP, "other", EXPENSIVE, CHEAP, "other"]
    assert answers[1.0] == [best, "other", EXPENSIVE, best, "other"]
    assert best in {MIDDLE, EXPENSIVE}
