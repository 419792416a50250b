"""How states lie in space: moments, effective dimensionality, anisotropy, Fisher separability."""

from prefill_router.geometry.moments import Moments
from prefill_router.geometry.reading import SiteStates
from prefill_router.geometry.statistics import (
    ClassSums,
    Directions,
    anisotropy,
    effective_dimensionality,
    fisher_j,
)

__all__ = [
    "ClassSums",
    "Directions",
    "Moments",
    "SiteStates",
    "anisotropy",
    "effective_dimensionality",
    "fisher_j",
]
