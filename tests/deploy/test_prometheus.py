"""The alert rules and the configuration, as promtool reads them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import DEPLOY

pytestmark = pytest.mark.slow

PLACE = DEPLOY / "prometheus"


def check(promtool: str, *line: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *line], capture_output=True, text=True, check=False)


def cases() -> list[dict[str, Any]]:
    return yaml.safe_load((PLACE / "alerts.test.yml").read_text())["tests"]


def alerts() -> set[str]:
    groups = yaml.safe_load((PLACE / "alerts.yml").read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def test_the_rules_and_the_configuration_are_valid(promtool: str) -> None:
    for line in (
        ("check", "rules", PLACE / "alerts.yml"),
        ("check", "config", "--syntax-only", PLACE / "prometheus.yml"),
        ("test", "rules", PLACE / "alerts.test.yml"),
    ):
        done = check(promtool, *line)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_where_it_fires_and_where_it_doesnt() -> None:
    silent, *firing = cases()
    assert {t["alertname"] for t in silent["alert_rule_test"]} == alerts()
    assert not any(t.get("exp_alerts") for t in silent["alert_rule_test"])
    fired = [t for case in firing for t in case["alert_rule_test"] if t.get("exp_alerts")]
    assert {t["alertname"] for t in fired} == alerts()


CHANGES = [("> 0.05", "> 0.5"), ("min by (job, target)", "max by (job, target)")]


@pytest.mark.parametrize("change", CHANGES)
def test_a_rule_that_is_wrong_fails(promtool: str, rules: Path, change: tuple[str, str]) -> None:
    file = rules / "alerts.yml"
    text = file.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    assert check(promtool, "test", "rules", rules / "alerts.test.yml").returncode != 0
