"""A gateway that serves before any router has been fitted."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.server_process import GatewayFiles
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    LocalGateway,
    World,
    chat,
    make_world,
    serve_world,
)
from prefill_router.errors import ConfigError
from prefill_router_gateway.receipts import explain, read_receipts
from prefill_router_gateway.runtime import load

pytestmark = pytest.mark.slow


def remove_router(world: World, default: str) -> World:
    """Take the router from a world, and give it a default target."""

    class FilesWithoutRouter(GatewayFiles):
        def paths(self, **options: Any) -> Any:
            paths = super().paths(**options)
            overrides = {**paths.overrides, "routing": {"fallback": default}}
            return replace(paths, router=None, overrides=overrides)

    world.files = FilesWithoutRouter(**vars(world.files))
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(tmp_path_factory.mktemp("no_router")) as world:
        yield remove_router(world, MIDDLE)


@pytest.fixture(autouse=True)
def _forget(world: World) -> None:
    world.forget()


def test_everything_goes_to_the_default_and_leaves_a_receipt(
    world: World, gateway: LocalGateway
) -> None:
    reply = gateway.ask(body=chat())
    assert reply.status == 200
    assert (reply.own_header("target"), reply.own_header("reason")) == (MIDDLE, "fallback")
    assert reply.own_header("fallback") == "no_router"
    assert world.requested_targets() == [MIDDLE]
    receipts = [
        r for r in read_receipts(world.files.url) if r.choice.id == reply.own_header("decision-id")
    ]
    assert [(r.outcome.target, r.router, r.choice.correctness) for r in receipts] == [
        (MIDDLE, "", {})
    ]
    assert receipts[0].cost
    assert set(receipts[0].choice.estimated_cost) == {CHEAP, MIDDLE, EXPENSIVE}
    assert (
        "there was no router yet, so the default target came first"
        in explain(receipts[0]).sentences()[2]
    )


def test_others_answer_where_they_are_named_or_the_default_fails(
    world: World, gateway: LocalGateway
) -> None:
    assert gateway.ask(body=chat(CHEAP)).own_header("fallback") is None
    down = [b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n"]
    world[MIDDLE].then(*[down] * 5)
    reply = gateway.ask(body=chat(text="again"))
    assert (reply.status, reply.own_header("target")) == (200, EXPENSIVE)


def test_page_metrics_and_readiness_say_that_there_is_no_router(gateway: LocalGateway) -> None:
    for number in range(30):
        gateway.ask(body=chat(text=f"question {number}"))
    ready = gateway.ask("/ready").json
    assert (ready["state"], ready["router"]) == ("ready", {"verdict": None})
    assert "no router yet" in ready["checks"]["encoder"]["note"]
    overview = gateway.ask("/page/api/overview").json
    assert (overview["state"], overview["router"], overview["policy"]) == ("ready", None, None)
    assert any("no router yet" in problem for problem in overview["problems"])
    assert overview["fallback_share"] == 0
    assert 'fingerprint="none"' in gateway.ask("/metrics").body.decode()


def test_an_unpriced_target_leaves_costs_unestimated(tmp_path: Path) -> None:
    with make_world(
        tmp_path, {CHEAP: {"input_price": 1.0, "output_price": 2.0}, EXPENSIVE: {}}
    ) as world:
        loaded = load(remove_router(world, CHEAP).files.paths())
        assert loaded.light.costs.is_free
        with serve_world(world) as gateway:
            reply = gateway.ask(body=chat())
        assert (reply.own_header("target"), reply.own_header("estimated-cost")) == (CHEAP, None)
        assert next(iter(read_receipts(world.files.url))).cost  # of the answer, at CHEAP's price


@pytest.mark.parametrize("default", ["prior", "cheapest", "taget-1"])
def test_a_default_that_is_no_target_is_refused(default: str, world: World) -> None:
    paths = replace(world.files.paths(), overrides={"routing": {"fallback": default}})
    with pytest.raises(ConfigError, match="--default"):
        load(paths)
