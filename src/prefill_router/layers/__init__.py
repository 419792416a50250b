"""Which layer and pooling of an encoder says most about which target is right."""

from prefill_router.layers.candidates import candidate_sites
from prefill_router.layers.choice import Choice, Method, Scope, Selection
from prefill_router.layers.grid import GRID_DIMS, Grid, search
from prefill_router.layers.selection import enough_labels, select
from prefill_router.layers.survey import Survey, fit_reducer, survey

__all__ = [
    "GRID_DIMS",
    "Choice",
    "Grid",
    "Method",
    "Scope",
    "Selection",
    "Survey",
    "candidate_sites",
    "enough_labels",
    "fit_reducer",
    "search",
    "select",
    "survey",
]
