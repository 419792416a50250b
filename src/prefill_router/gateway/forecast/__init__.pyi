from .forecaster import (
    Forecaster as Forecaster,
    ForecasterState as ForecasterState,
    ForecasterStats as ForecasterStats,
)
from .worker_process import NoForecastError as NoForecastError
