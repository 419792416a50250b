"""A run on disk: its tasks and every answer, as it came; it only grows."""

from prefill_router.harness.runs.run import Run

__all__ = ["Run"]
