from .api import serving_gateway as serving_gateway
from .proxy import ForwardRequest as ForwardRequest
from .records import (
    Header as Header,
    Receipt as Receipt,
    RoutingRequest as RoutingRequest,
)
from .settings import LatencySettings as LatencySettings, SavingsSettings as SavingsSettings
