"""Forecasts: the router's encoder and predictor, in a process of their own.

forecaster       what the gateway asks: forecasts, with a deadline, a queue and a cache
queue            the requests that wait, each prompt once, and which come in time
worker_process   the process as its parent sees it, and what goes through the pipes
worker           the process itself, and its forecasts of a batch

Importing this loads no torch; only the worker does.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
