from .deployments import RateHeadroom as RateHeadroom
from .failures import stream_error_end as stream_error_end
from .forward_request import (
    LACKING as LACKING,
    NO_FIXES as NO_FIXES,
    BodyFixes as BodyFixes,
    BodyRules as BodyRules,
    FixedBody as FixedBody,
    ForwardRequest as ForwardRequest,
    SplicedBody as SplicedBody,
)
from .forwarder import (
    ForwardedCall as ForwardedCall,
    Forwarder as Forwarder,
    TargetState as TargetState,
    await_to_end as await_to_end,
)
