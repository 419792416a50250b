from .own_questions import write_tasks as write_tasks
from .registry import BENCHMARKS as BENCHMARKS, Benchmark as Benchmark
from .source import LoadReport as LoadReport
from .tasks import load_tasks as load_tasks, sample_tasks as sample_tasks
