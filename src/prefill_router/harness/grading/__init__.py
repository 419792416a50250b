"""Grading: from a run's answers to the dataset that `fit` reads, without asking anybody again."""

from prefill_router.harness.grading.base import Grade, Grader
from prefill_router.harness.grading.job import grade_run
from prefill_router.harness.grading.registry import GRADERS, Graders, Settings
from prefill_router.harness.grading.report import GradingReport

__all__ = ["GRADERS", "Grade", "Grader", "Graders", "GradingReport", "Settings", "grade_run"]
