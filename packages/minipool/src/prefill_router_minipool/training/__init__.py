"""Trains the tiny pool's models; see `python -m prefill_router_minipool.training --help`."""
