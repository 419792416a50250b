"""The metrics that a gateway has, and the programs that check what is in deploy/."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from packages.gateway.tests.server_process import gateway_thread, write_gateway_files
from packages.gateway.tests.telemetry.receipts import (
    OUTCOME,
    RECEIPT,
    attempt,
    receipt,
    render_text,
)
from prefill_router_gateway.forecast import Drift
from prefill_router_gateway.settings import SavingsSettings
from prefill_router_gateway.telemetry import BudgetLeft, GaugeReadings, Metrics
from tests.deploy import DEPLOY
from tests.deploy.series import Series


@pytest.fixture(scope="session")
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed; apt-get install prometheus")
    return program


@pytest.fixture(scope="session")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """All that /metrics can show: of a running gateway, and of requests that went every way."""
    files = write_gateway_files(tmp_path_factory.mktemp("gateway"), "http://127.0.0.1:1/v1")
    with gateway_thread(files.paths()) as gateway, gateway.client() as client:
        texts = [client.get("/metrics").text]
    readings = GaugeReadings(
        budgets=[BudgetLeft(key="", per="day", dollars=10, left=2.5)],
        drift=Drift(requests=300, by_feature={"length": 0.3}, mean=0.3, largest=0.3),
        shared={"down": 0, "replicas": 3, "losses": 1},
        learning={"judges": 0.2, "side answers": 0.5},
        deployment_breakers={"large@east": "open"},
    )
    metrics = Metrics(["small", "large"])
    metrics.count_refusal(503)
    metrics.count_passthrough("retrieve", OUTCOME)
    ends = (
        *(attempt("small", "overloaded"), attempt("small", "overloaded")),
        replace(attempt("large"), deployment="large@east"),
    )
    failed = receipt(choice={"fallback": "deadline"}, outcome={"attempts": ends, "usage": None})
    metrics.use_encoder_prices(SavingsSettings(encoder_second_dollars=0.01))
    metrics.count_score(1.0)
    compared = replace(RECEIPT, baseline="large")
    for each in (compared, failed, replace(failed, cost=None), replace(compared, cost=None)):
        metrics.observe(each)
    texts.append(render_text(metrics, readings))
    all_series = Series()
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                all_series.add(sample.name, sample.labels)
    return all_series


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A copy of the alerts and their tests, to be changed."""
    for name in ("alerts.yml", "alerts.test.yml"):
        shutil.copy(DEPLOY / "prometheus" / name, tmp_path)
    return tmp_path
