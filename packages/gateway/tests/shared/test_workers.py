"""Workers of one port share what replicas share."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import yaml

from packages.gateway.tests.receipts.postgres_server import PostgresServer
from packages.gateway.tests.server_process import (
    QUIET,
    TARGETS,
    gateway_process,
    write_gateway_files,
)
from prefill_router_gateway.guard import digest
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = pytest.mark.slow

KEY = "pr-of-this-test"


def test_two_workers_allow_exactly_the_requests_per_minute_of_a_key(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    row = {"name": "a", "sha256": digest(KEY), "created": "2026-11-01", "requests_per_minute": 20}
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump({"keys": [row]}))
    models = [ScriptedModel(name, {}, otherwise="Yes.") for name in TARGETS]
    with serve(models) as targets:
        settings = {**QUIET, "shared": {"url": postgres.url, "wait_seconds": 60}}
        files = write_gateway_files(tmp_path, targets.base_url, settings=settings)
        options = ("--workers", "2", "--keys", str(tmp_path / "keys.yaml"))
        with gateway_process(files, *options) as running:

            def ask(number: int) -> int:
                body = {"model": "auto", "messages": [{"role": "user", "content": f"{number}?"}]}
                with httpx2.Client(base_url=running.url, timeout=60, trust_env=False) as client:
                    client.headers["authorization"] = f"Bearer {KEY}"
                    return client.post("/v1/chat/completions", json=body).status_code

            start = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                codes = Counter(pool.map(ask, range(50)))
            refill = int((time.monotonic() - start) * 20 / 60)
    assert codes.keys() == {200, 429}
    assert 20 <= codes[200] <= 20 + refill
