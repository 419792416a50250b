from .deployments import (
    Breakers as Breakers,
    BreakerState as BreakerState,
    RateHeadroom as RateHeadroom,
)
from .failures import stream_error_end as stream_error_end
from .forwarder import Forwarder as Forwarder, TargetState as TargetState
