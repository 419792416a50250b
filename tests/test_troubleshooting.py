"""Whatever sends a reader to "When something is wrong" names one of its headings."""

import re
from pathlib import Path

import yaml

from prefill_router.errors import TROUBLESHOOTING, refer
from prefill_router_gateway.telemetry.health import Health, HealthFinding

ROOT = Path(__file__).parents[1]
HEADINGS = re.findall(r"^## (.+)$", (ROOT / TROUBLESHOOTING).read_text(encoding="utf-8"), re.M)
LINKS = {
    refer(re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")) for heading in HEADINGS
}
CHECKS = ("process", "event_loop", "encoder", "forecasts", "receipts", "targets", "shared")


def test_every_alert_names_a_heading() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]
    for rule in rules["rules"]:
        assert f"see {rule['annotations'].get('runbook')}" in LINKS, rule["alert"]


def test_every_check_that_is_not_ok_names_a_heading() -> None:
    finding = HealthFinding("failed", "broken")
    checks = {name: lambda: finding for name in (*CHECKS, "versions")}
    results = Health(alive={}, ready=checks).ready().value["checks"]
    advice = {name: f"see {result['see']}" for name, result in results.items() if "see" in result}
    assert set(advice.values()) <= LINKS
    assert checks.keys() - advice.keys() == {"process"}


def test_every_error_that_refers_to_the_page_names_a_heading() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("packages/*/src/**/*.py")]
    anchors = {
        anchor for text in sources for anchor in re.findall(r"\brefer\(['\"](.+?)['\"]\)", text)
    }
    assert anchors
    assert {refer(anchor) for anchor in anchors} <= LINKS
