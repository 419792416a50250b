"""Every metric, label and value that the dashboard, the alerts and the guides name exists."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy import DEPLOY
from tests.deploy.series import OF_PROMETHEUS, SELECTOR, Series

pytestmark = pytest.mark.slow

ROOT = DEPLOY.parent
GUIDE = ROOT / "docs" / "guides" / "gateway-metrics.md"
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \|([\w, ]*)\|", re.MULTILINE)
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(DEPLOY.glob("*.md"))]


def dashboard() -> list[dict[str, str]]:
    found = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    return [target for panel in found["panels"] for target in panel["targets"]]


def alerts() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_dashboards_metrics_exist(series: Series) -> None:
    targets = dashboard()
    assert len(targets) > 30
    for target in targets:
        assert SELECTOR.search(target["expr"])
        assert list(series.wrong(target["expr"])) == []
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
        assert shown <= set(re.findall(r"\w+", kept[1] if kept else ""))


def test_the_alerts_metrics_exist(series: Series) -> None:
    for expression in alerts():
        assert "prefill_router_" in expression or expression.startswith("up{")
        assert list(series.wrong(expression)) == []


def test_the_guides_table_is_what_a_gateway_shows(series: Series) -> None:
    table = {
        f"prefill_router_{name}": set(re.findall(r"\w+", labels))
        for names, labels in ROW.findall(GUIDE.read_text())
        for name in re.findall(r"\w+", names)
    }
    metrics = {
        re.sub(r"_(bucket|count|sum)$", "", name): labels.keys() - {"le"}
        for name, labels in series.values.items()
    }
    infos = {name for name in metrics if name.endswith("_info")}  # their labels are the information
    assert table.keys() == metrics.keys()
    assert {k: v for k, v in table.items() if k not in infos} == {
        name: labels for name, labels in metrics.items() if name not in infos
    }


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_metrics_that_a_page_names_exist(page: Path, series: Series) -> None:
    for name in re.findall(r"\bprefill_router_\w*[a-z]\b", page.read_text()):
        names = {n for n in series.values if n.startswith("prefill_router_")}
        assert name in names or f"{name}_bucket" in names or name in NOT_METRICS


PACKAGES = {f"prefill_router_{name}" for name in ("example", "gateway", "lab", "minipool")}
NOT_METRICS = {"prefill_router_key", *PACKAGES}


def test_what_is_wrong_is_found(series: Series) -> None:
    for expression, wrong in (
        ("sum(rate(prefill_router_request_total[5m]))", "prefill_router_request_total"),
        ('prefill_router_lam{key="a"}', "prefill_router_lam: key"),
        ("sum by (goal) (prefill_router_breaker_state)", "goal"),
        ('prefill_router_receipt_events_total{kind="lots"}', "kind=lots"),
        ('prefill_router_requests_total{outcome=~"failed|broken"}', "outcome=broken"),
    ):
        assert any(wrong in found for found in series.wrong(expression)), expression
    assert not OF_PROMETHEUS & series.values["prefill_router_requests_total"].keys()


def test_the_dashboards_queries_are_promql(promtool: str, tmp_path: Path) -> None:
    """As rules, since promtool checks only these; Grafana's variables have values."""
    rows = [
        {"record": f"of:dashboard:{n}", "expr": target["expr"].replace("$__rate_interval", "5m")}
        for n, target in enumerate(dashboard())
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rows}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(rows)} rules found" in done.stdout
