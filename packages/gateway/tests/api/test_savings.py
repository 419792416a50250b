"""A gateway shows its savings at its endpoint, on its page and in its metrics."""

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from packages.gateway.tests.world import CHEAP, EXPENSIVE, LocalGateway, World, chat, make_world
from prefill_router_gateway.receipts import Savings
from prefill_router_gateway.settings import GatewaySettings, SavingsSettings

pytestmark = pytest.mark.slow

KEYS = {name: f"pr-{name[0] * 43}" for name in ("admin", "client")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    keys = [
        {"name": name, "sha256": sha256(key.encode()).hexdigest(), "admin": name == "admin"}
        for name, key in KEYS.items()
    ]
    settings = {"savings": {"baseline": EXPENSIVE, "encoder_thousand_dollars": 5}}
    with make_world(tmp_path_factory.mktemp("savings"), settings=settings, keys=keys) as world:
        yield world


def test_savings_are_told_to_admins_alone(gateway: LocalGateway) -> None:
    client, admin = (f"Bearer {KEYS[name]}" for name in ("client", "admin"))
    for lam in ("0", "1"):
        reply = gateway.ask(body=chat(text=f"How? {lam}"), authorization=client, lam=lam)
        assert reply.status == 200
    assert gateway.ask(body=chat(CHEAP), authorization=client).status == 200
    assert gateway.ask("/v1/savings", authorization=client).status == 403
    savings = gateway.ask("/v1/savings?since=1h", authorization=admin)
    assert (savings.json["baseline"], savings.json["chosen_by"]) == (EXPENSIVE, "receipts")
    assert savings.json["requests"] == 2
    assert savings.json["apart"]["named"]["requests"] == 1
    assert savings.json["deducted"][0]["dollars"] == pytest.approx(0.01)
    other = gateway.ask(f"/v1/savings?baseline={CHEAP}", authorization=admin).json
    assert other["at_baseline"] < savings.json["at_baseline"]
    for wrong in ("since=soon", "baseline=giant"):
        assert gateway.ask(f"/v1/savings?{wrong}", authorization=admin).status == 400

    spend = gateway.ask("/page/api/spend", authorization=admin).json["hour"]
    assert (spend["baseline"], spend["compared"]) == (EXPENSIVE, 2)
    assert spend["at_baseline"] == pytest.approx(savings.json["at_baseline"])
    page = gateway.ask("/page/api/savings", authorization=admin).json
    assert page["savings"]["at_baseline"] == pytest.approx(savings.json["at_baseline"])
    decision = gateway.ask(
        "/page/api/decisions/" + gateway.receipts[0].choice.id, authorization=admin
    )
    assert decision.json["instead"]["baseline"] == EXPENSIVE

    metrics = gateway.ask("/metrics", authorization=admin).body.decode()
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    for name, value in (
        (f'spent_dollars_total{{baseline="{EXPENSIVE}"}}', savings.json["spent"]),
        (f'baseline_dollars_total{{baseline="{EXPENSIVE}"}}', savings.json["at_baseline"]),
        ('deducted_dollars_total{kind="encoder"}', 0.01),
    ):
        assert float(values[f"prefill_router_savings_{name}"]) == pytest.approx(value)


def test_without_a_named_baseline_it_is_the_best_by_train_accuracy(gateway: LocalGateway) -> None:
    loaded = gateway.gateway.live.loaded
    unset = replace(loaded, settings=GatewaySettings())
    accuracies = loaded.light.reference_accuracy
    assert accuracies is not None
    assert loaded.baseline == EXPENSIVE
    assert unset.baseline == loaded.light.pool.names[accuracies.argmax()]
    light = replace(loaded.light, reference_accuracy=np.array([np.nan, *accuracies[1:]]))
    second = loaded.light.pool.names[1 + int(accuracies[1:].argmax())]
    assert replace(unset, light=light).baseline == second
    assert replace(unset, light=replace(light, reference_accuracy=None)).baseline is None


def test_what_took_long_is_kept_for_longer(gateway: LocalGateway) -> None:
    savings, settings = gateway.gateway.savings, SavingsSettings()

    async def read_savings() -> tuple[Savings, Savings]:
        return await savings.since(settings, "2h"), await savings.since(settings, "2h")

    first, second = gateway.wait_for(read_savings())
    assert first is second
