from .criteria import (
    GRID_DIMS as GRID_DIMS,
    Ablation as Ablation,
    Grid as Grid,
    Selector as Selector,
    Survey as Survey,
    ablation as ablation,
    fit_reducer as fit_reducer,
    mean_over_targets as mean_over_targets,
    search as search,
    survey as survey,
)
from .depth import (
    DepthProfile as DepthProfile,
    depth_profile as depth_profile,
    neighbour_votes as neighbour_votes,
)
from .figures import (
    draw_depth as draw_depth,
    draw_geometry as draw_geometry,
    draw_sweep as draw_sweep,
)
from .layer_sweep import (
    EncoderSweep as EncoderSweep,
    auc_of_selection as auc_of_selection,
    encoder_labels as encoder_labels,
    sweep as sweep,
)
from .selection import (
    Method as Method,
    Pinned as Pinned,
    Scope as Scope,
    Selection as Selection,
    SiteChoice as SiteChoice,
    candidate_sites as candidate_sites,
    enough_labels as enough_labels,
    select as select,
)
