from .cross_fit import CrossFit as CrossFit, FoldChoices as FoldChoices
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
    CascadePlan as CascadePlan,
    CascadeStage as CascadeStage,
    LightRouter as LightRouter,
    plan_cascade as plan_cascade,
    read_light as read_light,
    without_router as without_router,
)
from .record import (
    Interval as Interval,
    PoolChanges as PoolChanges,
    RouterRecord as RouterRecord,
    TargetHead as TargetHead,
    TrainedOn as TrainedOn,
    head_inputs as head_inputs,
    shared_output as shared_output,
)
from .reference import TrainReference as TrainReference
from .router import (
    EncoderSources as EncoderSources,
    Router as Router,
    count_tokens as count_tokens,
    encode_cached as encode_cached,
    find_finished_store as find_finished_store,
)
from .storage import (
    check_replaceable as check_replaceable,
    fingerprint as fingerprint,
    is_router as is_router,
)
from .switchyard import (
    SwitchyardCheckpoint as SwitchyardCheckpoint,
    switchyard_bytes as switchyard_bytes,
    unheld_encoder as unheld_encoder,
)
from .versions import (
    VersionLineage as VersionLineage,
    VersionRegistry as VersionRegistry,
    VersionState as VersionState,
    VersionStep as VersionStep,
)
