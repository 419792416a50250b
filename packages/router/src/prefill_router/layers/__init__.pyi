from .depth import (
    DepthProfile as DepthProfile,
    EncoderSweep as EncoderSweep,
    auc_of_selection as auc_of_selection,
    depth_profile as depth_profile,
    encoder_labels as encoder_labels,
    neighbour_votes as neighbour_votes,
    sweep as sweep,
)
from .figures import (
    draw_depth as draw_depth,
    draw_geometry as draw_geometry,
    draw_sweep as draw_sweep,
)
from .selection import (
    GRID_DIMS as GRID_DIMS,
    Ablation as Ablation,
    Grid as Grid,
    Method as Method,
    Pinned as Pinned,
    Scope as Scope,
    Selection as Selection,
    Selector as Selector,
    SiteChoice as SiteChoice,
    Survey as Survey,
    ablation as ablation,
    candidate_sites as candidate_sites,
    enough_labels as enough_labels,
    fit_reducer as fit_reducer,
    mean_over_targets as mean_over_targets,
    search as search,
    select as select,
    survey as survey,
)
