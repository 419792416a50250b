"""Trains the tiny pool's models; see `python -m prefill_router.minipool.training --help`."""
