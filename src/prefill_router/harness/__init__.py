"""The harness: asks the targets, grades the answers, makes the dataset that `fit` reads."""

from prefill_router.harness.records import Answer, Attempt, Task
from prefill_router.harness.run import Run

__all__ = ["Answer", "Attempt", "Run", "Task"]
