from .cascade import (
    CascadePlan as CascadePlan,
    CascadeStage as CascadeStage,
    plan_cascade as plan_cascade,
)
from .decision import (
    Decision as Decision,
    Forecast as Forecast,
    Request as Request,
    Segment as Segment,
    as_prompt as as_prompt,
    decide as decide,
    refuse_cascade as refuse_cascade,
)
from .light import (
    LightRouter as LightRouter,
    read_light as read_light,
    without_router as without_router,
)
from .pool_changes import (
    PoolChanges as PoolChanges,
    TargetHead as TargetHead,
    head_inputs as head_inputs,
    shared_output as shared_output,
)
from .record import Interval as Interval, RouterRecord as RouterRecord, TrainedOn as TrainedOn
from .reference import TrainReference as TrainReference
from .router import Router as Router
from .router_arena import (
    ARENA_SIZES as ARENA_SIZES,
    ArenaSubmission as ArenaSubmission,
    arena_errors as arena_errors,
    arena_name as arena_name,
    arena_robustness as arena_robustness,
)
from .states import (
    EncoderSources as EncoderSources,
    cached_states as cached_states,
    count_tokens as count_tokens,
    finished_store as finished_store,
)
from .storage import (
    check_replaceable as check_replaceable,
    fingerprint as fingerprint,
    is_router as is_router,
)
from .switchyard import (
    SwitchyardCheckpoint as SwitchyardCheckpoint,
    unheld_encoder as unheld_encoder,
)
from .switchyard_export import switchyard_bytes as switchyard_bytes
from .versions import (
    VersionLineage as VersionLineage,
    VersionRegistry as VersionRegistry,
    VersionState as VersionState,
    VersionStep as VersionStep,
)
