"""Forecasts: the router's encoder and predictor, in a process of their own.

forecaster        the gateway's interface to forecasts: a cache and a queue, and what comes of them
queue             the queued requests, each prompt once, and which can be answered in time
encoder_process   starts, calls and ends the encoder's process; the messages between the two
shared_encoder    the same process, shared by several gateways over a Unix socket
encoder_program   the process itself, which forecasts a batch

Importing this loads no torch; only the process does.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
