"""Where tasks come from: three public benchmarks and a user's own files, read one by one."""

from prefill_router.harness.benchmarks.own_questions import write_tasks
from prefill_router.harness.benchmarks.registry import (
    BENCHMARKS,
    Benchmark,
    load_tasks,
    sample_tasks,
)
from prefill_router.harness.benchmarks.source import LoadReport

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "LoadReport",
    "load_tasks",
    "sample_tasks",
    "write_tasks",
]
