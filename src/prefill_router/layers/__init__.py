"""Which layer and pooling of an encoder says most about which target is right."""

from prefill_router.layers.ablation import Ablation, Selector, ablation
from prefill_router.layers.candidates import candidate_sites
from prefill_router.layers.choice import Choice, Method, Pinned, Scope, Selection
from prefill_router.layers.grid import GRID_DIMS, Grid, search
from prefill_router.layers.selection import enough_labels, select
from prefill_router.layers.survey import Survey, fit_reducer, survey
from prefill_router.layers.sweep import Sweep, auc_of_selection, sweep

__all__ = [
    "GRID_DIMS",
    "Ablation",
    "Choice",
    "Grid",
    "Method",
    "Pinned",
    "Scope",
    "Selection",
    "Selector",
    "Survey",
    "Sweep",
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
