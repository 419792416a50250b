"""Routing by other policies than the paper's."""

from dataclasses import replace

import pytest

from packages.router.tests.router.fixtures import with_encoder
from prefill_router.errors import ConfigError
from prefill_router.policy import Cascade, Threshold, Tolerance
from prefill_router.router import Router
from prefill_router.testing import FakeEncoder

REQUEST = "Question 3 of difficulty 0.50: why?"


@pytest.fixture
def live_router(router: Router) -> Router:
    return with_encoder(router, FakeEncoder())


@pytest.mark.slow
def test_a_tolerant_router_takes_the_cheapest_that_is_nearly_as_good(live_router: Router) -> None:
    tolerant = replace(live_router, policy=Tolerance())
    for lam in (0.0, 0.5, 0.9, 1.0):
        got = tolerant.route(REQUEST, lam=lam)
        best = max(got.correctness.values())
        near = [n for n, p in got.correctness.items() if p >= best - (1 - lam) - 1e-12]
        assert got.target == min(near, key=lambda name: got.estimated_cost[name])
        assert got.policy == got.to_dict()["policy"] == "tolerance"
        assert got.order[0] == got.target


def test_a_threshold_knows_two_targets(live_router: Router) -> None:
    threshold = replace(live_router, policy=Threshold(strong="target-2", weak="target-0"))
    chosen = {threshold.route(REQUEST, lam=lam).target for lam in (0.0, 0.3, 0.7, 1.0)}
    assert chosen <= {"target-0", "target-2"}
    assert threshold.route(REQUEST, lam=1.0).target == "target-2"


def test_a_cascade_has_nothing_to_choose_beforehand(live_router: Router) -> None:
    with pytest.raises(ConfigError, match="a cascade decides after each answer"):
        replace(live_router, policy=Cascade()).route(REQUEST)
