"""A router fitted on made-up answers with the fake encoder, once for all tests of this folder."""

import dataclasses

import pytest

from packages.router.tests.router.fixtures import SMALL, with_encoder
from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset, split
from prefill_router.fitting import RouterFit, fit_router
from prefill_router.router import Router
from prefill_router.testing import FakeEncoder, make_routing_dataset


@pytest.fixture(scope="session")
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture(scope="session")
def answers() -> RoutingDataset:
    return make_routing_dataset(queries=400, targets=3, missing=0.05)


@pytest.fixture(scope="session")
def states(encoder: FakeEncoder, answers: RoutingDataset) -> MemoryActivations:
    sites = [Site(layer, pooling) for layer in (2, 3, 4) for pooling in ("last", "mean")]
    return encoder.encode(answers.queries, sites)


@pytest.fixture(scope="session")
def router_fit(
    answers: RoutingDataset, states: MemoryActivations, encoder: FakeEncoder
) -> RouterFit:
    fit = fit_router(answers, [states], config=SMALL, split=split(answers))
    return dataclasses.replace(fit, router=with_encoder(fit.router, encoder))


@pytest.fixture(scope="session")
def router(router_fit: RouterFit) -> Router:
    return router_fit.router
