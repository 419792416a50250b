"""The store of hidden states, with their provenance."""

from prefill_router.activations.base import (
    POOLINGS,
    ROUNDINGS,
    Activations,
    MemoryActivations,
    Pooling,
    Provenance,
    Rounding,
    Site,
    rounded,
)
from prefill_router.activations.store import ActivationStore

__all__ = [
    "POOLINGS",
    "ROUNDINGS",
    "ActivationStore",
    "Activations",
    "MemoryActivations",
    "Pooling",
    "Provenance",
    "Rounding",
    "Site",
    "rounded",
]
