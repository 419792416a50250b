"""Loads the tasks of any benchmark or file, and draws samples of them.

Tasks are named on the command line by `NAME`, `NAME=COPY`, either with options, or a file:

    mmlu_pro
    mmlu_pro=copies/mmlu_pro,shots=5
    livecodebench,release=release_v5,from=2024-08-01,revision=0fe84c3
    questions.jsonl

A benchmark's name comes first: a file of that name is meant by `./mmlu_pro`. A sample of tasks
doesn't depend on their order.
"""

import hashlib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

from prefill_router.errors import ConfigError, FormatError
from prefill_router.lazy_imports import load
from prefill_router.runs import Task
from prefill_router_lab.benchmarks import own_questions
from prefill_router_lab.benchmarks.registry import BENCHMARKS, Benchmark
from prefill_router_lab.benchmarks.source import (
    BenchmarkCopy,
    HubCopy,
    LoadReport,
    LocalCopy,
    PlacedTask,
    check_distinct,
)

Reader = Callable[[BenchmarkCopy, Mapping[str, str], LoadReport], Iterator[PlacedTask]]
"""Reads a copy of a benchmark with these options; the report fills as the tasks are taken."""
REVISION: Final = "revision"
_LAST_OPTION = re.compile(r"(.*),([a-z]+)=([^,]*)", re.DOTALL)


@final
@dataclass(frozen=True, kw_only=True)
class BenchmarkSpec:
    """A parsed specification of tasks.

    Attributes:
        benchmark: The benchmark; None where a file was named.
        path: The file, or the local copy of the benchmark; None for the hub's.
        options: The options, by name.
    """

    benchmark: str | None
    path: Path | None
    options: Mapping[str, str]


def parse_spec(text: str, options: Mapping[str, frozenset[str]]) -> BenchmarkSpec:
    """Parse a specification of tasks.

    Args:
        text: The specification.
        options: The options of each benchmark, besides the revision.

    Raises:
        ConfigError: It is empty, or has an option that the benchmark lacks, or repeats one.
    """
    if not text.strip() or "\0" in text:
        raise ConfigError(f"no tasks were named; name a file, or one of {', '.join(options)}")
    name = re.split("[=,]", text, maxsplit=1)[0]
    if name not in options:
        return BenchmarkSpec(benchmark=None, path=Path(text), options={})
    names = options[name] | {REVISION}
    rest, values = _split_options(text.removeprefix(name), names)
    if rest and not rest.startswith("="):
        raise ConfigError(
            f"{name} has no option {rest[1:]!r}; it has {', '.join(sorted(names))}. Write each "
            "as NAME=VALUE after a comma"
        )
    if rest == "=":
        raise ConfigError(
            f"{name}= has no file or folder after it; add it, or write {name} "
            "alone to read from the hub"
        )
    return BenchmarkSpec(benchmark=name, path=Path(rest[1:]) if rest else None, options=values)


def _split_options(rest: str, names: frozenset[str]) -> tuple[str, dict[str, str]]:
    """The part before the options, which are taken from the end, and the options."""
    options: dict[str, str] = {}
    while (match := _LAST_OPTION.fullmatch(rest)) and match[2] in names:
        rest, name, value = match.groups()
        if name in options:
            raise ConfigError(f"{name} is repeated; keep one of them")
        if not value:
            raise ConfigError(f"{name} has no value; leave it out for the usual one")
        options[name] = value
    return rest, options


@final
class _RankedTask(NamedTuple):
    """A task of the sample; the smallest is the first to be replaced."""

    rank: int
    position: int
    task: Task


def sample_tasks(tasks: Iterable[Task], count: int, *, seed: int = 0) -> list[Task]:
    """A random sample of `count` tasks, in their order; all of them where there are fewer.

    The tasks are ranked by a hash of id and seed. So a larger sample contains the smaller ones of
    the same seed, and an added task displaces at most one other.

    Raises:
        ConfigError: The count isn't positive.
    """
    if count < 1:
        raise ConfigError(f"a sample of {count} tasks was asked for; at least 1 is needed")
    sample: list[_RankedTask] = []
    for position, task in enumerate(tasks):
        entry = _RankedTask(-_rank_task(task.query.id, seed), position, task)
        if len(sample) < count:
            heapq.heappush(sample, entry)
        else:
            heapq.heappushpop(sample, entry)
    return [entry.task for entry in sorted(sample, key=lambda entry: entry.position)]


def _rank_task(query_id: str, seed: int) -> int:
    key = f"{seed}\0{query_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(key).digest())


def load_tasks(
    spec: str, *, revision: str | None = None, report: LoadReport | None = None
) -> Iterator[Task]:
    """The tasks of a benchmark or a file, one by one as they are taken.

    A LiveCodeBench problem can have hundreds of megabytes of tests: process one at a time, and keep
    none.

    Args:
        spec: A name in `BENCHMARKS`, perhaps with `=` and a local copy, and with options after
            commas (`mmlu_pro=copies/mmlu_pro,shots=5`); or a user's own file.
        revision: Branch, tag or commit of the hub's repository; the newest where None.
        report: Filled with the source of the tasks, and with what was left out.

    Raises:
        ConfigError: There is no such benchmark or option, or the hub can't be reached or refuses.
        FormatError: A file doesn't exist or isn't as expected, an id repeats, or there are no
            tasks. All but the first are raised when the task in question is taken.
    """
    source = parse_spec(spec, {name: benchmark.options for name, benchmark in BENCHMARKS.items()})
    report = LoadReport() if report is None else report
    if source.benchmark is None:
        tasks = _read_own_file(source, revision, report)
    else:
        benchmark = BENCHMARKS[source.benchmark]
        read: Reader = load("prefill_router_lab.benchmarks", benchmark.reader)
        tasks = read(_open_copy(benchmark, source, revision), source.options, report)
    return check_distinct(tasks, source=spec, report=report)


def _read_own_file(
    source: BenchmarkSpec, revision: str | None, report: LoadReport
) -> Iterator[PlacedTask]:
    path = source.path
    if path is None or not path.exists():
        raise FormatError(
            f"no such file; tasks are a file, or one of {', '.join(BENCHMARKS)}", file=str(path)
        )
    if revision is not None:
        raise ConfigError(f"{path} is a file and has no revision {revision!r}; leave it out")
    own_questions.check_file(path)
    return own_questions.read(path, report)


def _open_copy(benchmark: Benchmark, source: BenchmarkSpec, revision: str | None) -> BenchmarkCopy:
    version = source.options.get(REVISION, revision)
    if revision is not None and version != revision:
        raise ConfigError(
            f"two revisions are given, {version!r} and {revision!r}; keep one of them"
        )
    if source.path is None:
        return HubCopy(benchmark.repository, revision=version)
    if version is not None:
        raise ConfigError(
            f"{source.path} is a local copy and has no revisions; leave {version!r} out"
        )
    return LocalCopy(source.path)
