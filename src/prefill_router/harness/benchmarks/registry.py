"""The benchmarks, defined here and nowhere else, and the one function that loads any tasks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from prefill_router.errors import ConfigError, FormatError
from prefill_router.harness.benchmarks import hle, livecodebench, mmlu_pro, own
from prefill_router.harness.benchmarks.base import LoadReport, Placed, distinct
from prefill_router.harness.benchmarks.copies import Copy, HubCopy, LocalCopy
from prefill_router.harness.benchmarks.spec import REVISION, Spec, parse_spec
from prefill_router.harness.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark whose tasks can be loaded.

    Attributes:
        summary: What it is, in a line.
        repository: Its dataset on the Hugging Face hub.
        options: What can be asked for beside the revision.
        read: Reads a copy; checks the options at once, and reads as the tasks are taken.
    """

    summary: str
    repository: str
    options: frozenset[str]
    read: Callable[[Copy, Mapping[str, str], LoadReport], Iterator[Placed]]


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "mmlu_pro": Benchmark(
        summary="MMLU-Pro, multiple choice; shots=5 adds solved questions",
        repository=mmlu_pro.REPOSITORY,
        options=mmlu_pro.OPTIONS,
        read=mmlu_pro.read,
    ),
    "hle": Benchmark(
        summary="Humanity's Last Exam, the questions without images",
        repository=hle.REPOSITORY,
        options=hle.OPTIONS,
        read=hle.read,
    ),
    "livecodebench": Benchmark(
        summary="LiveCodeBench, programming; release=release_v5, from=2024-08-01, to=2025-01-01",
        repository=livecodebench.REPOSITORY,
        options=livecodebench.OPTIONS,
        read=livecodebench.read,
    ),
}
"""Every benchmark by its name on the command line."""


def load_tasks(
    spec: str, *, revision: str | None = None, report: LoadReport | None = None
) -> Iterator[Task]:
    """The tasks of a benchmark or a file, one by one as they are taken.

    A LiveCodeBench problem can have hundreds of megabytes of tests: take one, do with it what is to
    be done, and let it go.

    Args:
        spec: A name in `BENCHMARKS`, with `=` and a local copy or without, and options after
            commas (`mmlu_pro=copies/mmlu_pro,shots=5`); or a user's own file.
        revision: Branch, tag or commit of the hub's repository; the newest where None.
        report: Told where the tasks are from, and what was left out.

    Raises:
        ConfigError: There is no such benchmark or option, or the hub can't be reached or refuses.
        FormatError: A file doesn't exist or isn't as expected, an id repeats, or there are no
            tasks; all but the first are raised when the task in question is taken.
    """
    named = parse_spec(spec, {name: known.options for name, known in BENCHMARKS.items()})
    report = LoadReport() if report is None else report
    if named.benchmark is None:
        found = _own(named, revision, report)
    else:
        known = BENCHMARKS[named.benchmark]
        found = known.read(_copy(known, named, revision), named.options, report)
    return distinct(found, source=spec, report=report)


def _own(named: Spec, revision: str | None, report: LoadReport) -> Iterator[Placed]:
    path = named.path
    if path is None or not path.exists():
        raise FormatError(
            f"no such file; tasks are a file, or one of {', '.join(BENCHMARKS)}", file=str(path)
        )
    if revision is not None:
        raise ConfigError(f"{path} is a file and has no revision {revision!r}; leave it out")
    own.check_file(path)
    return own.read(path, report)


def _copy(known: Benchmark, named: Spec, revision: str | None) -> Copy:
    asked = named.options.get(REVISION, revision)
    if revision is not None and asked != revision:
        raise ConfigError(f"the revision is {asked!r} and {revision!r} at once; keep one of them")
    if named.path is None:
        return HubCopy(known.repository, revision=asked)
    if asked is not None:
        raise ConfigError(f"{named.path} is a local copy and has no revisions; leave {asked!r} out")
    return LocalCopy(named.path)
