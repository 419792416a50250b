"""The harness: asks the targets, grades the answers, makes the dataset that `fit` reads."""

from prefill_router.harness.answer import Answer, Attempt
from prefill_router.harness.runs.run import Run
from prefill_router.harness.task import Task

__all__ = ["Answer", "Attempt", "Run", "Task"]
