from .activity import health_checks as health_checks
from .configuration import (
    GatewayPaths as GatewayPaths,
    LoadedGateway as LoadedGateway,
    encoder_socket as encoder_socket,
    load as load,
)
from .gateway import Gateway as Gateway, OtherWorkers as OtherWorkers
from .request_scope import (
    IncomingRequest as IncomingRequest,
    RequestRecord as RequestRecord,
    Snapshot as Snapshot,
    target_header as target_header,
)
from .startup import (
    needs_shared_state as needs_shared_state,
    refuse_unshared as refuse_unshared,
)
from .versions import ServedVersions as ServedVersions, VersionWatch as VersionWatch
