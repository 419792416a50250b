from .api import serving_gateway as serving_gateway
from .records import (
    ForwardRequest as ForwardRequest,
    Header as Header,
    Receipt as Receipt,
    RoutingRequest as RoutingRequest,
)
from .settings import LatencySettings as LatencySettings, SavingsSettings as SavingsSettings
