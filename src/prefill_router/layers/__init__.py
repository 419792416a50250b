"""Which layer and pooling of an encoder says most about which target is right."""

from prefill_router.layers.criteria import (
    GRID_DIMS,
    Ablation,
    Grid,
    Selector,
    Survey,
    ablation,
    fit_reducer,
    search,
    survey,
)
from prefill_router.layers.layer_sweep import EncoderSweep, auc_of_selection, sweep
from prefill_router.layers.selection import (
    Method,
    Pinned,
    Scope,
    Selection,
    SiteChoice,
    candidate_sites,
    enough_labels,
    select,
)

__all__ = [
    "GRID_DIMS",
    "Ablation",
    "EncoderSweep",
    "Grid",
    "Method",
    "Pinned",
    "Scope",
    "Selection",
    "Selector",
    "SiteChoice",
    "Survey",
    "ablation",
    "auc_of_selection",
    "candidate_sites",
    "enough_labels",
    "fit_reducer",
    "search",
    "select",
    "survey",
    "sweep",
]
