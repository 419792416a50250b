"""The versions of a router: each step is whole or not at all, and says why."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packages.router.tests.programs import run_program
from prefill_router.errors import ConfigError, CorruptError, StoreError
from prefill_router.remote import RemotePath
from prefill_router.router import Router, VersionRegistry, read_light, versions
from prefill_router.router.storage import fingerprint, save_router

pytestmark = pytest.mark.slow


@pytest.fixture
def registry(router: Router, tmp_path: Path) -> VersionRegistry:
    versions = VersionRegistry.at(tmp_path / "versions")
    for n in range(3):
        versions.add(router, {"data": f"data {n}", "labels": {"judge:j": 10}})
    return versions


def test_a_version_has_its_router_and_its_lineage(
    registry: VersionRegistry, router: Router
) -> None:
    registry.promote("0001")
    assert registry.add(router, {"data": "more"}) == "0004"
    state = VersionRegistry.at(registry.place).state()
    assert [v.name for v in state.versions] == ["0001", "0002", "0003", "0004"]
    assert (state["0004"].parent, state["0004"].data) == ("0001", "more")
    for version in state.versions:
        assert read_light(registry.router(version.name)).fingerprint == version.fingerprint
    card = (registry.router("0004") / "README.md").read_text()
    assert "version 0004 of a router that learns from traffic, fitted while version 0001" in card


def test_a_candidate_comes_by_degrees_and_every_step_is_kept_with_its_evidence(
    registry: VersionRegistry,
) -> None:
    registry.promote("0001")
    registry.shadow("0002")
    shared = registry.widen(0.1, evidence={"labels": 200})
    assert (shared.current, shared.candidate, shared.stage, shared.share) == (
        *("0001", "0002", "share"),
        0.1,
    )
    promotion = registry.promote(evidence={"p": 0.01})
    assert (promotion.current, promotion.candidate, promotion.stage, promotion.share) == (
        "0002",
        None,
        None,
        0.0,
    )
    assert [(s.event, s.version, s.share, s.evidence) for s in promotion.steps[3:]] == [
        ("promoted", "0001", 0.0, {}),
        ("shadow", "0002", 0.0, {}),
        ("share", "0002", 0.1, {"labels": 200}),
        ("promoted", "0002", 0.0, {"p": 0.01}),
    ]


def test_going_back_undoes_one_promotion_after_the_other(registry: VersionRegistry) -> None:
    for name in ("0001", "0002", "0003"):
        registry.promote(name)
    registry.shadow("0001")
    assert (back := registry.roll_back()).current == "0002"
    assert back.candidate is None
    assert registry.roll_back().current == "0001"
    assert registry.roll_back().current is None
    with pytest.raises(ConfigError, match="no version serves"):
        registry.roll_back()
    registry.promote("0003")
    assert registry.roll_back("0001").current == "0001"


def test_a_candidate_that_is_withdrawn_leaves_the_rest_as_it_is(registry: VersionRegistry) -> None:
    registry.promote("0001")
    registry.shadow("0002")
    state = registry.withdraw(evidence={"p": 0.001})
    assert (state.current, state.candidate, state.steps[-1].version) == ("0001", None, "0002")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda r: r.promote(), "no candidate"),
        (lambda r: r.widen(0.5), "no candidate"),
        (lambda r: r.withdraw(), "no candidate"),
        (lambda r: r.widen(1.0), "below 1"),
        (lambda r: r.promote("0009"), "there are: 0001, 0002, 0003"),
    ],
)
def test_impossible_steps_change_nothing(
    registry: VersionRegistry, step: Callable[[VersionRegistry], object], message: str
) -> None:
    before = registry.state()
    with pytest.raises(ConfigError, match=message):
        step(registry)
    assert registry.state() == before


def test_other_folders_and_damaged_states_are_refused(
    registry: VersionRegistry, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no versions of a router"):
        VersionRegistry.at(tmp_path / "notes")
    file = tmp_path / "versions" / "state" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    with pytest.raises(CorruptError, match="backup"):
        registry.state()


_STEPS = """
import sys
from prefill_router.router import VersionRegistry
registry = VersionRegistry.at(sys.argv[1])
print("ready", flush=True)
while True:
    registry.promote("0002"); registry.roll_back()
"""


def test_what_a_writer_left_that_was_killed_before_its_first_step_is_no_other_thing(
    router: Router, tmp_path: Path
) -> None:
    router.save(tmp_path / "versions" / "0001")
    (tmp_path / ".state.lock").touch()
    (tmp_path / ".state.0123abcd.tmp").mkdir()
    assert VersionRegistry.at(tmp_path).state().versions == ()
    assert VersionRegistry.at(tmp_path).add(router, {"data": "again"}) == "0001"
    assert {entry.name for entry in tmp_path.iterdir()} == {"versions", "state"}


def test_two_writers_of_which_one_is_killed_lose_no_step_and_leave_none_half_done(
    registry: VersionRegistry,
) -> None:
    command = [sys.executable, "-c", _STEPS, str(registry.place)]
    with run_program(command, stdout=subprocess.PIPE, env={**os.environ}) as other:
        assert other.stdout is not None
        other.stdout.readline()
        for _ in range(10):
            registry.promote("0001", by="operator")
        other.send_signal(signal.SIGKILL)
    state = registry.state()
    mine = [step for step in state.steps if step.by == "operator" and step.event == "promoted"]
    assert len(mine) == 10
    assert registry.promote("0003").current == "0003"


def test_versions_at_a_url_are_as_in_a_folder(router: Router) -> None:
    registry = VersionRegistry.at("memory://bucket/versions")
    assert registry.add(router, {}) == "0001"
    registry.promote("0001")
    again = VersionRegistry.at("memory://bucket/versions")
    assert again.state().current == "0001"
    assert read_light(again.router("0001")).fingerprint == again.state()["0001"].fingerprint


def test_writers_at_a_url_never_change_each_others_versions(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = VersionRegistry.at("memory://bucket/two-writers")

    def fingerprint_late(place: RemotePath) -> str:
        monkeypatch.setattr(versions, "fingerprint", fingerprint)
        mark = fingerprint(place)
        assert registry.add(router, {"data": "the other's"}) == "0002"
        return mark

    monkeypatch.setattr(versions, "fingerprint", fingerprint_late)
    with pytest.raises(StoreError, match="replaced by another process"):
        registry.add(router, {"data": "mine"})
    mark = fingerprint(registry.router("0002"))
    assert [(v.name, v.fingerprint) for v in registry.state().versions] == [("0002", mark)]
    assert registry.add(router, {}) == "0003"
    with pytest.raises(StoreError, match="is there already"):
        save_router(router, registry.router("0002"), new=True)
