"""A gateway that serves the versions of a router, and follows their steps."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.server_process import GatewayFiles
from packages.gateway.tests.world import (
    MIDDLE,
    PATIENCE,
    LocalGateway,
    World,
    chat,
    make_world,
    router_folder,
    serve_world,
)
from prefill_router.router import Router, VersionRegistry
from prefill_router_gateway.receipts import explain
from prefill_router_gateway.runtime import ServedVersions

pytestmark = pytest.mark.slow

SETTINGS = {"routing": {"versions_seconds": 0.05, "deadline_seconds": PATIENCE}}

LAMS = 0.6, 0.7, 0.7


def use_versions(world: World) -> World:
    """Give a world the versions of a router in place of one router, and a default target."""

    class VersionedFiles(GatewayFiles):
        def paths(self, **options: Any) -> Any:
            paths = super().paths(**options)
            overrides = {**paths.overrides, "routing": {"fallback": MIDDLE}}
            place = self.folder / "versions"
            return replace(paths, router=None, versions=place, overrides=overrides)

    world.files = VersionedFiles(**vars(world.files))
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("versions"), settings=SETTINGS) as world:
        for queries, lam in zip((200, 220, 220), LAMS, strict=True):
            router = Router.load(router_folder(queries))
            assert router.record.chosen is not None
            chosen = {"chosen": replace(router.record.chosen, setting=lam)}
            record = router.record.model_copy(update=chosen)
            registry_of(world).add(replace(router, record=record), {})
        yield use_versions(world)


def registry_of(world: World) -> VersionRegistry:
    return VersionRegistry.at(world.files.folder / "versions")


@pytest.fixture
def registry(world: World, gateway: LocalGateway) -> VersionRegistry:
    """The registry of versions; the first version serves alone."""
    registry = registry_of(world)
    registry.promote("0001")
    wait_for_versions(gateway, ServedVersions("0001"))
    return registry


def wait_for_versions(gateway: LocalGateway, versions: ServedVersions) -> None:
    """Wait until these versions serve, and the steps that led there are applied."""
    live = gateway.gateway

    def is_reached() -> bool:
        return live.live.loaded.served == versions and not live.versions_problem

    gateway.wait_until(is_reached)


def ask_about(gateway: LocalGateway, conversation: int) -> str:
    """Ask within a conversation; returns the version that decided, as its receipt says."""
    reply = gateway.ask(body=chat(), **{"x-session-id": f"conversation {conversation}"})
    assert reply.status == 200
    (receipt,) = (r for r in gateway.receipts if r.choice.id == reply.own_header("decision-id"))
    version: str = receipt.details["version"][0]
    assert receipt.router == fingerprints(gateway)[version]
    return version


def fingerprints(gateway: LocalGateway) -> dict[str, str]:
    registry = gateway.gateway._places.registry
    assert registry is not None
    return {version.name: version.fingerprint for version in registry.state().versions}


def test_a_share_of_conversations_stays_with_the_candidate_as_it_grows(
    registry: VersionRegistry, gateway: LocalGateway
) -> None:
    registry.shadow("0002")
    registry.widen(0.3)
    wait_for_versions(gateway, ServedVersions("0001", "0002", 0.3))
    first = [ask_about(gateway, n) for n in range(40)]
    assert 4 <= first.count("0002") <= 20
    assert [ask_about(gateway, n) for n in range(10)] == first[:10]
    registry.widen(0.6)
    wait_for_versions(gateway, ServedVersions("0001", "0002", 0.6))
    wider = [ask_about(gateway, n) for n in range(40)]
    assert all(now == "0002" for before, now in zip(first, wider, strict=True) if before == "0002")
    assert first.count("0002") < wider.count("0002") < 40
    registry.shadow("0002")
    wait_for_versions(gateway, ServedVersions("0001"))
    assert gateway.gateway.live.candidate is None  # in the shadow it isn't loaded


def test_each_version_decides_at_the_lam_that_was_chosen_for_it(
    world: World, registry: VersionRegistry, gateway: LocalGateway
) -> None:
    worth = dict(zip(("0001", "0002"), LAMS, strict=False))
    registry.shadow("0002")
    registry.widen(0.5)
    wait_for_versions(gateway, ServedVersions("0001", "0002", 0.5))
    lams: dict[str, float | None] = {}
    while len(lams) < 2:
        version = ask_about(gateway, len(gateway.receipts))
        lams[version] = gateway.receipts[-1].choice.lam
    assert lams == worth
    world.files.configure({"routing": {**SETTINGS["routing"], "lam": 0.25}})
    gateway.wait_for(gateway.gateway.reload())
    ask_about(gateway, 0)
    assert gateway.receipts[-1].choice.lam == 0.25
    world.files.configure(SETTINGS)
    gateway.wait_for(gateway.gateway.reload())


def test_receipt_readiness_page_log_and_metrics_name_the_versions_and_their_evidence(
    registry: VersionRegistry, gateway: LocalGateway, caplog: pytest.LogCaptureFixture
) -> None:
    registry.shadow("0002")
    caplog.set_level(logging.INFO, "prefill_router_gateway.runtime.versions")
    registry.widen(
        0.5, evidence={"why": "it isn't surely cheaper yet", "e_values": {"cheaper": 3.25}}
    )
    wait_for_versions(gateway, ServedVersions("0001", "0002", 0.5))
    while ask_about(gateway, len(gateway.receipts)) != "0002":
        pass
    sentences = explain(gateway.receipts[-1]).sentences()
    assert "decided by version 0002 (candidate, 50 % of conversations)" in sentences
    step_text = "the learner gave version 0002 50 % of the conversations"
    step = f"{registry.state().steps[-1].at}: {step_text}: it isn't surely cheaper yet"
    assert step in sentences
    serving = "version 0001; version 0002 (candidate, 50 % of conversations)"
    ready = gateway.ask("/ready").json
    assert (ready["state"], ready["router"]["serving"]) == ("ready", serving)
    assert gateway.ask("/page/api/overview").json["serving"] == serving
    detail = gateway.ask(f"/page/api/decisions/{gateway.receipts[-1].choice.id}").json
    assert detail["version"] == "version 0002 (candidate, 50 % of conversations)"
    assert detail["version_step"] == step
    page = gateway.ask("/page/api/versions").json
    assert (page["serving"], page["versions"]) == (serving, 3)
    assert page["steps"][0]["words"] == f"{step_text}: it isn't surely cheaper yet"
    assert page["steps"][0]["evidence"] == [{"name": "e values, cheaper", "value": "3.25"}]
    gateway.wait_until(
        lambda: f"{step_text}: it isn't surely cheaper yet (evidence: " in caplog.text
    )
    assert 'version_share{version="0002"} 0.5' in gateway.ask("/metrics").body.decode()


def test_promoting_and_rolling_back_fail_no_request(
    registry: VersionRegistry, gateway: LocalGateway
) -> None:
    statuses: list[int] = []
    ended = threading.Event()

    def keep_asking() -> None:
        while not ended.wait(0.01):
            statuses.append(gateway.ask(body=chat(text=f"question {len(statuses)}")).status)

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        registry.shadow("0002")
        registry.widen(0.5)
        wait_for_versions(gateway, ServedVersions("0001", "0002", 0.5))
        forecaster = gateway.gateway.live.each[1].forecaster
        registry.promote()
        wait_for_versions(gateway, ServedVersions("0002"))
        assert gateway.gateway.live.forecaster is forecaster  # its encoder isn't started again
        registry.roll_back()
        wait_for_versions(gateway, ServedVersions("0001"))
    finally:
        ended.set()
        thread.join()
    assert set(statuses) == {200}
    assert ask_about(gateway, 1) == "0001"


def test_a_damaged_version_is_refused_and_the_old_one_serves_on(
    registry: VersionRegistry, gateway: LocalGateway, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = Path(str(registry.router("0003")))
    (file,) = (path for path in damaged.iterdir() if path.name == "router.json")
    original_bytes = file.read_bytes()
    file.write_bytes(original_bytes[:-20])
    try:
        registry.promote("0003")
        gateway.wait_until(lambda: bool(gateway.gateway.versions_problem))
        assert ask_about(gateway, 1) == "0001"
        assert gateway.ask("/ready").json["checks"]["versions"]["state"] == "degraded"
        registry.roll_back("0001")
        wait_for_versions(gateway, ServedVersions("0001"))
        registry.shadow("0003")
        registry.widen(0.5)
        gateway.wait_until(lambda: bool(gateway.gateway.versions_problem))
        assert {ask_about(gateway, n) for n in range(10)} == {"0001"}
    finally:
        file.write_bytes(original_bytes)
    wait_for_versions(gateway, ServedVersions("0001", "0003", 0.5))  # it is tried again
    assert caplog.text.count("isn't applied") == 2


def test_after_a_restart_the_state_is_taken_up(
    registry: VersionRegistry, gateway: LocalGateway, world: World
) -> None:
    registry.shadow("0002")
    registry.widen(0.3)
    wait_for_versions(gateway, ServedVersions("0001", "0002", 0.3))
    before = [ask_about(gateway, n) for n in range(20)]
    with serve_world(world) as other:
        assert [ask_about(other, n) for n in range(20)] == before
    assert set(before) == {"0001", "0002"}


def test_what_providers_charge_counts_before_the_prices_of_the_pool_file(
    registry: VersionRegistry, gateway: LocalGateway
) -> None:
    router, before = Router.load(registry.router("0001")), gateway.gateway.live.loaded.light.pool
    targets = tuple(replace(target, input_price=7.0, output_price=8.0) for target in router.pool)
    dearer = router.with_pool(replace(router.pool, targets=targets))
    name = registry.add(dearer, {"charged": (MIDDLE,)})
    registry.promote(name)
    wait_for_versions(gateway, ServedVersions(name))
    now = gateway.gateway.live.loaded.light.pool
    assert (now[MIDDLE].input_price, now[MIDDLE].output_price) == (7.0, 8.0)
    assert now[MIDDLE].provider == before[MIDDLE].provider
    assert [target for target in now if target.name != MIDDLE] == [
        o for o in before if o.name != MIDDLE
    ]


def test_before_the_first_version_the_default_target_serves(tmp_path: Path) -> None:
    with (
        make_world(tmp_path, settings=SETTINGS) as world,
        serve_world(use_versions(world)) as gateway,
    ):
        reply = gateway.ask(body=chat())
        assert (reply.own_header("target"), reply.own_header("fallback")) == (MIDDLE, "no_router")
        assert gateway.ask("/ready").json["router"]["serving"] == "the default target"
        registry = registry_of(world)
        registry.add(Router.load(router_folder()), {})
        registry.promote("0001")
        wait_for_versions(gateway, ServedVersions("0001"))
        assert ask_about(gateway, 1) == "0001"
        registry.roll_back()
        wait_for_versions(gateway, ServedVersions(None))
        assert gateway.ask(body=chat()).own_header("fallback") == "no_router"
