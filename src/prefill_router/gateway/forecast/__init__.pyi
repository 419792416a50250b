from .encoder_process import NoForecastError as NoForecastError
from .forecaster import (
    Forecaster as Forecaster,
    ForecasterState as ForecasterState,
    ForecasterStats as ForecasterStats,
    NoForecaster as NoForecaster,
)
from .messages import (
    FrameError as FrameError,
    pack_frame as pack_frame,
    plain_options as plain_options,
    receive_frame as receive_frame,
)
from .shared_encoder import SharedEncoder as SharedEncoder
