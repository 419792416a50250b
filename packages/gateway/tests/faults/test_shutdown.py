"""A gateway that is asked to end: not ready first, then a drain, and a log without surprises."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packages.gateway.tests.server_process import (
    GatewayFiles,
    GatewayProcess,
    gateway_process,
    write_gateway_files,
)

pytestmark = pytest.mark.slow

BODY = {"model": "auto", "messages": [{"role": "user", "content": "How are you?"}]}


@pytest.fixture
def silent() -> Iterator[str]:
    """A target that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        yield f"http://127.0.0.1:{place.getsockname()[1]}/v1"


@pytest.fixture
def files(tmp_path: Path, silent: str) -> GatewayFiles:
    ending = {"unready_seconds": 60.0, "drain_seconds": 0.2}
    return write_gateway_files(tmp_path, silent, settings={"listen": ending})


def fetch(url: str) -> httpx2.Response:
    return httpx2.get(url, trust_env=False, timeout=60)


def expect_broken_request(gateway: GatewayProcess) -> str:
    with pytest.raises(httpx2.TransportError) as caught:
        httpx2.post(f"{gateway.url}/v1/chat/completions", json=BODY, timeout=60, trust_env=False)
    return type(caught.value).__name__


def has_open_request(gateway: GatewayProcess) -> bool:
    return "prefill_router_requests_in_flight 1.0" in fetch(f"{gateway.url}/metrics").text


def send_signals(gateway: GatewayProcess, *signals: int) -> int:
    for number in signals:
        gateway.run.send_signal(number)
    return gateway.run.wait(60)


def check_readiness(gateway: GatewayProcess) -> tuple[int, Any]:
    reply = fetch(f"{gateway.url}/ready")
    return reply.status_code, reply.json()["checks"]["process"]


def test_it_is_not_ready_first_and_answers_on(files: GatewayFiles) -> None:
    with gateway_process(files) as gateway, ThreadPoolExecutor(1) as pool:
        assert check_readiness(gateway) == (200, {"state": "ok"})
        client = pool.submit(expect_broken_request, gateway)
        while not has_open_request(gateway):
            time.sleep(0.02)
        gateway.run.send_signal(signal.SIGTERM)
        while (check := check_readiness(gateway))[0] == 200:
            time.sleep(0.02)
        assert check == (503, {"state": "failed", "note": "the gateway is ending"})
        assert fetch(f"{gateway.url}/v1/models").status_code == 200
        assert fetch(f"{gateway.url}/health").status_code == 200
        assert send_signals(gateway, signal.SIGINT) == 0  # the second signal: now
        client.result()
    assert "ASGI" not in gateway.log.read_text()


def test_what_takes_longer_than_the_drain_ends_with_its_receipt_and_no_error(
    files: GatewayFiles,
) -> None:
    with gateway_process(files) as gateway, ThreadPoolExecutor(1) as pool:
        client = pool.submit(expect_broken_request, gateway)
        while not has_open_request(gateway):
            time.sleep(0.02)
        # nobody asks /ready, so it waits for nobody
        assert send_signals(gateway, signal.SIGTERM) == 0
        client.result()
    log = gateway.log.read_text()
    assert "ASGI" not in log
    assert "Traceback" not in log
    assert "Cancel" not in log
    assert "1 connections are still open" in log
    [row] = files.rows("outcome")
    assert row == {"outcome": "disconnected"}


SLOW_ENCODER = "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(600)"
SERVE = """
from prefill_router.cli import main
from prefill_router_gateway.forecast import encoder_process
encoder_process._MODULE = "slow_encoder"
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_while_the_encoder_is_loaded(
    files: GatewayFiles, tmp_path: Path, number: signal.Signals
) -> None:
    files.configure({})
    (tmp_path / "slow_encoder.py").write_text(SLOW_ENCODER)
    line = [sys.executable, "-c", SERVE, "serve", files.router, "--pool", files.pool]
    line += ["--config", files.config, "--port", "0", "--receipts", files.url]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            assert process.stderr is not None
            while "loading" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(number)
            log = process.stderr.read()
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert "Traceback" not in log
