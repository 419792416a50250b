"""Which layer and pooling of an encoder says most about which target is right."""

from prefill_router.layers.candidates import candidate_sites
from prefill_router.layers.choice import Choice, Method, Scope, Selection
from prefill_router.layers.selection import select
from prefill_router.layers.survey import Survey, fit_reducer, survey

__all__ = [
    "Choice",
    "Method",
    "Scope",
    "Selection",
    "Survey",
    "candidate_sites",
    "fit_reducer",
    "select",
    "survey",
]
