"""Grading: from a run's answers to the dataset that `fit` reads, without asking anybody again."""

from prefill_router.harness.grading.base import Grade, Grader
from prefill_router.harness.grading.grade import grade_run
from prefill_router.harness.grading.registry import GRADERS, Graders
from prefill_router.harness.grading.report import GradingReport
from prefill_router.harness.grading.settings import Settings

__all__ = ["GRADERS", "Grade", "Grader", "Graders", "GradingReport", "Settings", "grade_run"]
