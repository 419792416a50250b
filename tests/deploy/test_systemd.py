"""The systemd unit, as systemd reads it."""

import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from prefill_router_gateway.settings import ListenSettings
from tests.deploy import DEPLOY

UNIT = DEPLOY / "systemd" / "prefill-router.service"
PROGRAM = "/opt/prefill-router/bin/prefill-router"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; apt-get install systemd")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))
    return copy


def analyze(*line: str | Path) -> subprocess.CompletedProcess[str]:
    line = ("systemd-analyze", "--no-pager", *line)
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_systemd_understands_every_line(installed: Path) -> None:
    done = analyze("verify", "--man=no", installed)
    assert (done.returncode, done.stderr) == (0, "")
    installed.write_text(installed.read_text().replace("UMask", "UMaks"))
    assert "UMaks" in analyze("verify", "--man=no", installed).stderr


def test_it_is_exposed_little(installed: Path) -> None:
    done = analyze("security", "--offline=yes", "--threshold=15", installed)  # tenths, of 10
    assert done.returncode == 0, done.stdout


def test_only_the_gateway_is_told_to_end_and_has_time_to_drain() -> None:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    service = parser["Service"]
    default = ListenSettings()
    least = default.unready_seconds + default.drain_seconds + 20
    assert float(service["TimeoutStopSec"]) >= least
    assert service["KillMode"] == "mixed"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["ExecStart"].startswith(f"{PROGRAM} serve ")
