"""Training the models of the tiny pool; see `python -m prefill_router.minipool.training --help`."""
