"""A pool with only some of the router's targets."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.gateway.tests.server_process import write_gateway_files
from prefill_router.router import Forecast
from prefill_router.router.router import Router
from prefill_router.targets import Pool, Provider, read_pool, write_pool
from prefill_router_gateway import RoutingRequest
from prefill_router_gateway.decide import Budgets, Decider, Sessions
from prefill_router_gateway.runtime.configuration import load

pytestmark = pytest.mark.slow


def test_targets_that_the_pool_lacks_need_no_provider_of_it(tmp_path: Path) -> None:
    files = write_gateway_files(tmp_path, "http://127.0.0.1:9/v1")
    at_the_fit = read_pool(files.pool)
    Router.load(files.router).with_pool(at_the_fit).save(tmp_path / "elsewhere")
    other = Provider(name="other", base_url="http://127.0.0.1:9/v1")
    target = replace(next(iter(at_the_fit)), provider="other")
    write_pool(Pool((target,), at_the_fit.prices_date, (other,)), files.pool)

    configuration = load(replace(files.paths(), router=tmp_path / "elsewhere"))

    assert configuration.pool.names == (target.name,)
    assert configuration.light.pool.names == at_the_fit.names


def test_targets_that_the_pool_lacks_are_neither_asked_nor_told(tmp_path: Path) -> None:
    files = write_gateway_files(tmp_path, "http://127.0.0.1:9/v1")
    at_the_fit = read_pool(files.pool)
    targets = [replace(t, provider=None, base_url="http://127.0.0.1:9/v1") for t in at_the_fit]
    Router.load(files.router).with_pool(Pool(tuple(targets))).save(tmp_path / "elsewhere")
    dearer = replace(targets[1], base_url=None, input_price=7.0, output_price=9.0)
    write_pool(Pool((targets[0], dearer)), files.pool)

    configuration = load(replace(files.paths(), router=tmp_path / "elsewhere"))

    assert configuration.pool.names == (targets[0].name,)
    missing, with_price = configuration.light.pool["target-2"], configuration.light.pool["target-1"]
    assert (missing.base_url, missing.serves) == (None, ())
    assert (with_price.base_url, with_price.serves, with_price.input_price) == (None, None, 7.0)
    settings, at = configuration.settings, 1e9
    decider = Decider(
        configuration.light,
        settings,
        sessions=Sessions(settings.sessions),
        budgets=Budgets(),
        breaker_open=lambda _: False,
        pool=configuration.pool,
    )
    best = Forecast(np.array([0.1, 0.5, 0.9]), 9, False)
    questions = [
        RoutingRequest(endpoint="chat", at=at, lam_asked=1.0, to_call=call)
        for call in (True, False)
    ]
    assert [decider.decide(each, best).order for each in questions] == [
        ("target-0",),
        ("target-1", "target-0"),
    ]
