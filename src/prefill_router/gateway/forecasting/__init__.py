"""Forecasts: the router's encoder and predictor, in a process of their own.

client.py     what the gateway asks: forecasts, with a deadline, a queue and a memory
waiting.py    the requests that wait, each prompt once, and which come in time
pace.py       how long prompts take, learned from batches
memory.py     forecasts of prompts that came lately
link.py       the process as its parent sees it: started, asked, ended
frames.py     what goes through the pipes: a length, then JSON
exchange.py   what the JSON says
worker.py     the process itself
reading.py    its forecasts of a batch, in which one bad prompt spoils no other

Importing this loads no torch; only the worker does.
"""

from prefill_router.gateway.forecasting.client import Forecaster
from prefill_router.gateway.forecasting.failure import NoForecastError
from prefill_router.gateway.forecasting.stats import ForecasterState, ForecasterStats

__all__ = ["Forecaster", "ForecasterState", "ForecasterStats", "NoForecastError"]
