"""The complexity of the text: readability, diversity, structure and information (section 3.2)."""

from prefill_router.features.complexity.family import COLUMNS, Complexity, ComplexityConfig, measure
from prefill_router.features.registry import Entry

__all__ = ["COLUMNS", "ENTRY", "Complexity", "ComplexityConfig", "measure"]

ENTRY = Entry(ComplexityConfig, Complexity)
