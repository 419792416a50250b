"""Where tasks come from: three public benchmarks and a user's own files, read one by one."""

from prefill_router.harness.benchmarks.base import LoadReport
from prefill_router.harness.benchmarks.registry import BENCHMARKS, Benchmark, load_tasks
from prefill_router.harness.benchmarks.sampling import sample_tasks
from prefill_router.harness.benchmarks.writing import write_tasks

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "LoadReport",
    "load_tasks",
    "sample_tasks",
    "write_tasks",
]
