"""Statistics of the nearest train queries: how often, and how close, each target was right."""

from prefill_router.features.neighbours.config import NeighboursConfig
from prefill_router.features.neighbours.family import Neighbours
from prefill_router.features.registry import Entry

__all__ = ["ENTRY", "Neighbours", "NeighboursConfig"]

ENTRY = Entry(NeighboursConfig, Neighbours)
