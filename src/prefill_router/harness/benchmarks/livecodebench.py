"""LiveCodeBench (livecodebench/code_generation_lite): programming contests, graded by their tests.

The repository has one file for each release, which holds the problems that were new in it. By
default all are read. As with the benchmark's own tags, `release=release_v5` is everything up to the
fifth, `release=v5` the fifth alone, `release=v2_v4` these three. `from=2024-08-01` and
`to=2025-01-01` keep the problems of contests in that time, both days included.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple, final

from prefill_router.data import Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.harness.benchmarks.base import LoadReport, Placed
from prefill_router.harness.benchmarks.copies import Copy
from prefill_router.harness.benchmarks.hidden_tests import decoded
from prefill_router.harness.benchmarks.rows import rows
from prefill_router.harness.task import Task
from prefill_router.importers import values
from prefill_router.importers.base import Collector
from prefill_router.importers.tables import Record

REPOSITORY: Final = "livecodebench/code_generation_lite"
OPTIONS: Final = frozenset({"release", "from", "to"})
OUTSIDE: Final = "of a contest outside the dates asked for"
FILES: Final = tuple(f"test{'' if n == 1 else n}.jsonl" for n in range(1, 7))
"""The file of each release, in order."""
_RELEASE = re.compile(r"(?:(release_)?v([1-6])|v([1-6])_v([1-6]))")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_NEEDS = (
    *("question_id", "question_content", "contest_date", "starter_code"),
    *("public_test_cases", "private_test_cases"),
)
_WANTS = ("question_title", "platform", "difficulty", "metadata")
_BY_STDIN = (
    "Solve this problem with a Python program. It reads the input from standard input, and prints "
    "the answer to standard output and nothing else. Put the whole program into one fenced block "
    "that begins with ```python."
)
_BY_FUNCTION = (
    "Solve this problem in Python by completing the starter code below, whose names and "
    "parameters must stay as they are. Put the whole code, with all imports, into one fenced block "
    "that begins with ```python."
)


@final
class _Window(NamedTuple):
    """The days of the first and the last contest."""

    first: date
    last: date


def read(copy: Copy, options: Mapping[str, str], report: LoadReport) -> Iterator[Placed]:
    """The problems of the releases and days asked for, each decoded when it is taken.

    Raises:
        ConfigError: There is no such release, or a date isn't one.
        FormatError: A file or a row isn't as expected.
    """
    release = options.get("release")
    names = FILES if release is None else _files(release)
    window = _Window(
        _day_asked(options.get("from", "0001-01-01"), "from"),
        _day_asked(options.get("to", "9999-12-31"), "to"),
    )
    if window.first > window.last:
        raise ConfigError(f"from {window.first} is after to {window.last}; exchange them")
    if copy.one_file() is not None and release is not None:
        raise ConfigError(
            f"{copy.name} is one file; leave out release, or name the folder of all of them"
        )
    return _read(copy, names, window, report, needs_all=release is not None)


def _read(
    copy: Copy, names: tuple[str, ...], window: _Window, report: LoadReport, *, needs_all: bool
) -> Iterator[Placed]:
    strict = Collector(strict=True)
    for path in _paths(copy, names, needs_all=needs_all):
        report.source = copy.name
        for place, record in rows(path, needs=_NEEDS, wants=_WANTS):
            with strict.row(place):
                day = _day(record["contest_date"])
                if window.first <= day <= window.last:
                    yield Placed(place, _task(record, day))
                else:
                    report.skipped[OUTSIDE] += 1


def _paths(copy: Copy, names: tuple[str, ...], *, needs_all: bool) -> Iterator[Path]:
    """The files, each fetched when the one before has been read."""
    one = copy.one_file()
    if one is not None:
        yield one
        return
    found = False
    for name in names:
        paths = copy.need([name]) if needs_all else copy.find([name])
        found = found or bool(paths)
        yield from paths
    if not found:
        copy.need(names)


def _files(release: str) -> tuple[str, ...]:
    match = _RELEASE.fullmatch(release)
    if not match:
        raise ConfigError(
            f"there is no release {release!r}; they are like release_v6 (all up to it), v6 (it "
            "alone) or v4_v6"
        )
    cumulative, one, first, last = match.groups()
    if one is None:
        start, end = int(first), int(last)
    else:
        start, end = 1 if cumulative else int(one), int(one)
    if start > end:
        raise ConfigError(f"the release {release!r} ends before it begins; exchange its numbers")
    return FILES[start - 1 : end]


def _day_asked(text: str, name: str) -> date:
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ConfigError(f"{name} is {text!r}; write a day like 2024-08-01")


def _day(value: object) -> date:
    """The day of a contest, from a text such as 2024-08-01T00:00:00 or a table's date."""
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError:
        raise DataError("contest_date isn't a date such as 2024-08-01T00:00:00") from None


def _task(record: Record, day: date) -> Task:
    starter = values.label_text(record["starter_code"], "starter_code")
    tests = [
        *decoded(record["public_test_cases"], "public_test_cases"),
        *decoded(record["private_test_cases"], "private_test_cases"),
    ]
    query = Query(
        f"livecodebench-{values.identifier(record['question_id'], 'question_id')}",
        _prompt(record, starter),
        benchmark="livecodebench",
        domain=values.label_text(record.get("platform"), "platform"),
    )
    return Task(
        query=query,
        grader="code",
        options={
            "tests": tests,
            "function": _function(record, tests),
            "starter_code": starter,
            "difficulty": values.label_text(record.get("difficulty"), "difficulty"),
            "contest_date": day.isoformat(),
        },
    )


def _prompt(record: Record, starter: str) -> str:
    title = values.label_text(record.get("question_title"), "question_title").strip()
    content = values.filled_text(record["question_content"], "question_content").strip()
    problem = f"{title}\n\n{content}" if title else content
    if not starter.strip():
        return f"{_BY_STDIN}\n\n{problem}"
    return f"{_BY_FUNCTION}\n\n{problem}\n\n```python\n{starter.rstrip()}\n```"


def _function(record: Record, tests: list[dict[str, str]]) -> str | None:
    """The name of the function that the tests call; None where they run the program."""
    kinds = {test["type"] for test in tests}
    if len(kinds) != 1:
        raise DataError(
            "has no tests" if not kinds else "has tests of a program and of a function at once"
        )
    if kinds == {"stdin"}:
        return None
    metadata = record.get("metadata")
    try:
        found = json.loads(metadata) if isinstance(metadata, str) else metadata
    except (ValueError, RecursionError):
        raise DataError("metadata isn't JSON") from None
    name = found.get("func_name") if isinstance(found, dict) else None
    return values.filled_text(name, "metadata: func_name")
