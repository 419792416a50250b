"""What the process of `prefill-router serve` has loaded, once it routed, kept and showed."""

import json

import httpx2
import pytest

from packages.gateway.tests.server_process import TARGETS, gateway_process, write_gateway_files
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = pytest.mark.slow

OURS = ("evaluation", "studies", "reporting", "fitting", "harness", "reproduce", "minipool")
HEAVY = ("polars", "matplotlib", "scipy", "torch", "transformers", "sklearn", "pandas", "openai")
TELLS = """
import atexit, json, os, pathlib, sys


def tell():
    (pathlib.Path(__file__).parent / f"{os.getpid()}.json").write_text(json.dumps([*sys.modules]))


atexit.register(tell)
"""
PAGES = ("overview", "decisions", "spend", "curve", "whatif?lam=0.3", "targets", "drift")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every module of the server's process, after what people do with it."""
    models = [ScriptedModel(name, {}, otherwise="Yes.") for name in TARGETS]
    folder, told = tmp_path_factory.mktemp("gateway"), tmp_path_factory.mktemp("told")
    (told / "sitecustomize.py").write_text(TELLS)
    with serve(models) as server:
        files = write_gateway_files(folder, server.base_url)
        with gateway_process(files, environment={"PYTHONPATH": f"{told}"}) as process:
            use(process.url)
        assert [row["reason"] for row in files.rows("reason")] == ["policy"]
    return set(json.loads((told / f"{process.run.pid}.json").read_text()))


def use(url: str) -> None:
    """Route a request, look at its receipt and at every part of the page."""
    turns = [{"role": "user", "content": "Is a difficulty of 0.5 much?"}]
    with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "auto", "messages": turns}
        reply = client.post("/v1/chat/completions", json=body).raise_for_status()
        name = reply.headers["x-prefill-router-decision-id"]
        said = client.post("/v1/feedback", json={"id": name, "score": 1.0})
        assert said.status_code == 200
        for path in (*PAGES, f"decisions/{name}"):
            client.get(f"/page/api/{path}").raise_for_status()
        for path in ("/", "/metrics", "/ready", "/openapi.json"):
            client.get(path).raise_for_status()


@pytest.mark.parametrize("name", [*(f"prefill_router.{part}" for part in OURS), *HEAVY])
def test_the_server_never_loads(loaded: set[str], name: str) -> None:
    assert name not in loaded


def test_what_the_server_loads_would_be_seen(loaded: set[str]) -> None:
    assert {"prefill_router_gateway.page.views", "fastapi", "numpy"} <= loaded
    assert "prefill_router_gateway.receipts.store" in loaded
