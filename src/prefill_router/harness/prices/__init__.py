"""The prices of a pool, refreshed from a public list."""

from prefill_router.harness.prices.refresh import refresh_prices

__all__ = ["refresh_prices"]
