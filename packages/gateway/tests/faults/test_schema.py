"""A fuzzer that is driven by the gateway's own OpenAPI document."""

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from packages.gateway.tests.server_process import (
    QUIET,
    TARGETS,
    GatewayThread,
    gateway_thread,
    write_gateway_files,
)
from prefill_router_gateway.api.app import application
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = pytest.mark.slow

EXAMPLES = 3
SLOW = ("/admin/reload",)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    settings = {**QUIET, "failures": {"backoff_seconds": 0.0, "breaker_failures": 1_000_000}}
    with serve([ScriptedModel(name, {}) for name in TARGETS]) as server:
        files = write_gateway_files(
            tmp_path_factory.mktemp("schema"),
            server.base_url,
            settings=settings,
            accepts=("tools", "images"),
        )
        with gateway_thread(files.paths(threads=1)) as running:
            yield running


def test_every_route_is_described(gateway: GatewayThread) -> None:
    with gateway.client() as client:
        document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    paths = set(document["paths"])
    assert {"/v1/chat/completions", "/v1/messages", "/page/api/lam", "/v1/route"} <= paths
    routes = application(gateway.gateway).routes
    served = {route.path for route in routes if getattr(route, "path", "").startswith("/v1/")}
    assert served <= paths
    assert set(document["paths"]["/v1/responses/{id}"]) == {"get", "delete"}
    for path, of in document["paths"].items():
        for method, operation in of.items():
            assert operation["summary"], (method, path)
            assert "200" in operation["responses"], (method, path)
    (ok,) = [document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]]
    assert "x-prefill-router-decision-id" in ok["headers"]


# Checks of types draw items of what the gateway's thread is given, while this one draws requests.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
def test_nothing_that_the_document_allows_or_forbids_brings_a_500(gateway: GatewayThread) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of schemathesis' own parts, as they are imported
        import schemathesis
        from schemathesis import GenerationMode
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    schema.validate()
    paths: set[str] = set()
    statuses: Counter[int] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in SLOW:
            continue
        paths.add(operation.path)
        takes = operation.method.upper() == "POST" or operation.query
        for mode in GenerationMode if takes else [GenerationMode.POSITIVE]:
            cases = operation.as_strategy(generation_mode=mode)
            attack(cases, operation, gateway, statuses)
    assert len(paths) > 15
    assert min(statuses[200], statuses[400]) > EXAMPLES
    with gateway.client() as client:
        body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
        assert client.post("/v1/chat/completions", json=body).status_code == 200


def attack(cases: Any, operation: Any, gateway: GatewayThread, statuses: Counter[int]) -> None:
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=cases)
    def check_case(case: Any) -> None:
        reply = case.call(base_url=gateway.url)
        description = (
            f"{operation.method} {operation.path}: {reply.status_code} {reply.content[:300]!r}"
        )
        statuses[reply.status_code] += 1
        assert reply.status_code != 500, description
        if reply.status_code >= 400 and operation.method.upper() != "HEAD":
            error = reply.json().get("error")
            assert error is not None, description
            assert isinstance(error["message"], str), description
            if operation.path.startswith("/v1/messages"):
                assert reply.json()["type"] == "error", description

    check_case()
