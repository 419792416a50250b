from .encoder_process import (
    FrameError as FrameError,
    NoForecastError as NoForecastError,
    pack_frame as pack_frame,
    plain_options as plain_options,
    receive_frame as receive_frame,
)
from .forecaster import (
    Drift as Drift,
    DriftWatch as DriftWatch,
    FallbackShare as FallbackShare,
    FallbackWatch as FallbackWatch,
    Forecaster as Forecaster,
    ForecasterState as ForecasterState,
    ForecasterStats as ForecasterStats,
    NoForecaster as NoForecaster,
    stability_index as stability_index,
)
from .shared_encoder import SharedEncoder as SharedEncoder
