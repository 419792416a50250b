"""The store of hidden states, with their provenance."""

from prefill_router.activations.base import (
    POOLINGS,
    Activations,
    MemoryActivations,
    Pooling,
    Provenance,
    Site,
)

__all__ = ["POOLINGS", "Activations", "MemoryActivations", "Pooling", "Provenance", "Site"]
