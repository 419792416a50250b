from .configuration import (
    GatewayPaths as GatewayPaths,
    LoadedGateway as LoadedGateway,
    encoder_socket as encoder_socket,
    load as load,
)
from .gateway import Gateway as Gateway, OtherWorkers as OtherWorkers
from .readings import health_checks as health_checks, read_gauges as read_gauges
from .request_record import (
    LONGEST_NAME as LONGEST_NAME,
    Recorders as Recorders,
    RoutedRequest as RoutedRequest,
    plain_prompt as plain_prompt,
    remember_stream as remember_stream,
    reply_headers as reply_headers,
    target_header as target_header,
    write_receipt as write_receipt,
)
from .snapshot import Snapshot as Snapshot
from .startup import (
    needs_shared_state as needs_shared_state,
    refuse_unshared as refuse_unshared,
)
from .versions import ServedVersions as ServedVersions, VersionWatch as VersionWatch
