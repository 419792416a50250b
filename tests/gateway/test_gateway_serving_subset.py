"""A pool that has some of the router's targets alone."""

from dataclasses import replace
from pathlib import Path

from gateway_running import make_gateway

from prefill_router.gateway.serving.loading import load
from prefill_router.router.router import Router
from prefill_router.targets import Pool, Provider, read_pool, write_pool


def test_targets_that_the_pool_lacks_need_no_provider_of_it(tmp_path: Path) -> None:
    made = make_gateway(tmp_path, "http://127.0.0.1:9/v1")
    at_the_fit = read_pool(made.pool)
    Router.load(made.router).with_pool(at_the_fit).save(tmp_path / "elsewhere")
    other = Provider(name="other", base_url="http://127.0.0.1:9/v1")
    kept = replace(next(iter(at_the_fit)), provider="other")
    write_pool(Pool((kept,), at_the_fit.prices_date, (other,)), made.pool)

    loaded = load(replace(made.places(), router=tmp_path / "elsewhere"))

    assert loaded.pool.names == (kept.name,)
    assert loaded.light.pool.names == at_the_fit.names
