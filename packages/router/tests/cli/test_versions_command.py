"""`versions`: what is listed, added, promoted and rolled back."""

import json
from pathlib import Path

import pytest

from packages.router.tests.commands import Job, check_refused, run_ok
from prefill_router.router import Router, VersionRegistry

pytestmark = pytest.mark.slow


@pytest.fixture
def versions(job: Job, tmp_path: Path) -> Path:
    registry = VersionRegistry.at(tmp_path / "versions")
    for _ in range(2):
        registry.add(Router.load(job.router), {"labels": {"judge:j": 1200}})
    return tmp_path / "versions"


def test_versions_are_listed_promoted_and_rolled_back(versions: Path) -> None:
    assert "goes to the default target" not in run_ok("versions", "promote", versions, "0001")
    shared = run_ok("versions", "promote", versions, "0002", "--share", "0.1")
    assert "0002 decides on 10 %" in shared
    listing = run_ok("versions", "list", versions)
    assert "candidate (share)" in listing
    assert "1,200" in listing
    assert run_ok("versions", "promote", versions) == "0002 serves\n"
    assert "0002: promoted, by operator" in run_ok("versions", "list", versions, "--steps", "1")
    assert json.loads(run_ok("versions", "rollback", versions, "--json"))["current"] == "0001"
    assert run_ok("versions", "rollback", versions) == "the default target serves\n"
    assert "requests go to the default target" in run_ok("versions", "list", versions)


def test_a_step_is_listed_with_its_evidence(versions: Path) -> None:
    evidence = {"why": "it is surely better", "e_values": {"better": 131.07, "cheaper": 2.0}}
    VersionRegistry.at(versions).promote("0001", evidence=evidence)
    output = run_ok("versions", "list", versions, "--steps", "1")
    assert "0001: promoted, by learner\n    why: it is surely better\n" in output
    assert "    e values, better: 131.1\n    e values, cheaper: 2\n" in output


def test_places_without_versions_are_refused(tmp_path: Path) -> None:
    check_refused("no versions of a router", "versions", "list", tmp_path)


def test_a_router_is_added_and_serves_once_it_is_promoted(job: Job, tmp_path: Path) -> None:
    place = tmp_path / "new"
    assert "version 0001" in run_ok("versions", "add", place, job.router)
    summary = json.loads(run_ok("versions", "add", place, job.router, "--json"))
    assert summary["version"] == "0002"
    assert "no version serves" in run_ok("versions", "list", place)
    assert run_ok("versions", "promote", place, "0001") == "0001 serves\n"
    step = VersionRegistry.at(place).state().steps[0]
    assert (step.event, step.by) == ("added", "operator")
