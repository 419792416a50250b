from .configuration import (
    GatewayPaths as GatewayPaths,
    LoadedGateway as LoadedGateway,
    load as load,
)
from .gateway import Gateway as Gateway, health_checks as health_checks
from .request_scope import (
    IncomingRequest as IncomingRequest,
    RequestRecord as RequestRecord,
    Snapshot as Snapshot,
    target_header as target_header,
)
