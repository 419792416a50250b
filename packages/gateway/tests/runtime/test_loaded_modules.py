"""The modules that `prefill-router serve` has loaded after requests, receipts and the page."""

import json

import httpx2
import pytest

from packages.gateway.tests.server_process import TARGETS, gateway_process, write_gateway_files
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = pytest.mark.slow

OWN_PACKAGES = ("evaluation", "studies", "reporting", "fitting", "harness", "reproduce", "minipool")
HEAVY_PACKAGES = (
    "polars",
    "matplotlib",
    "scipy",
    "torch",
    "transformers",
    "sklearn",
    "pandas",
    "openai",
)
REPORTER = """
import atexit, json, os, pathlib, sys


def tell():
    (pathlib.Path(__file__).parent / f"{os.getpid()}.json").write_text(json.dumps([*sys.modules]))


atexit.register(tell)
"""
PAGES = ("overview", "decisions", "spend", "curve", "whatif?lam=0.3", "targets", "drift")


@pytest.fixture(scope="module")
def module_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all modules in the server's process after `use_server`."""
    models = [ScriptedModel(name, {}, otherwise="Yes.") for name in TARGETS]
    folder, report_folder = tmp_path_factory.mktemp("gateway"), tmp_path_factory.mktemp("told")
    (report_folder / "sitecustomize.py").write_text(REPORTER)
    with serve(models) as server:
        world = write_gateway_files(folder, server.base_url)
        with gateway_process(world, environment={"PYTHONPATH": f"{report_folder}"}) as process:
            use_server(process.url)
        assert [row["reason"] for row in world.rows("reason")] == ["policy"]
    return set(json.loads((report_folder / f"{process.run.pid}.json").read_text()))


def use_server(url: str) -> None:
    """Route a request; read its receipt and every part of the page."""
    turns = [{"role": "user", "content": "Is a difficulty of 0.5 much?"}]
    with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "auto", "messages": turns}
        reply = client.post("/v1/chat/completions", json=body).raise_for_status()
        name = reply.headers["x-prefill-router-decision-id"]
        feedback = client.post("/v1/feedback", json={"id": name, "score": 1.0})
        assert feedback.status_code == 200
        for path in (*PAGES, f"decisions/{name}"):
            client.get(f"/page/api/{path}").raise_for_status()
        for path in ("/", "/metrics", "/ready", "/openapi.json"):
            client.get(path).raise_for_status()


@pytest.mark.parametrize(
    "name", [*(f"prefill_router.{part}" for part in OWN_PACKAGES), *HEAVY_PACKAGES]
)
def test_the_server_never_loads(module_names: set[str], name: str) -> None:
    assert name not in module_names


def test_what_the_server_loads_would_be_seen(module_names: set[str]) -> None:
    assert {"prefill_router_gateway.page.views", "fastapi", "numpy"} <= module_names
    assert "prefill_router_gateway.receipts.store" in module_names
