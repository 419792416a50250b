from .records import (
    ForwardRequest as ForwardRequest,
    Header as Header,
    Receipt as Receipt,
    RoutingRequest as RoutingRequest,
)
