"""LiveCodeBench (livecodebench/code_generation_lite): programming contests, graded by their tests.

The repository has a file with the new problems of each release. By default all are read. As with
the benchmark's own tags, `release=release_v5` is everything up to the fifth, `release=v5` only the
fifth, `release=v2_v4` these three. `from=2024-08-01` and `to=2025-01-01` keep the problems of
contests in that time, both days included.

Private tests are JSON, or JSON that was pickled, compressed and encoded in base64. Loading a pickle
would run any code in it. So it isn't loaded: its instructions are parsed, and only those that push
a single text are accepted.
"""

import base64
import binascii
import json
import pickletools
import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from prefill_router.data import Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.importers import (
    DatasetBuilder,
    Record,
    cell_text,
    identifier,
    label_text,
    require_text,
)
from prefill_router.runs import Task
from prefill_router_lab.benchmarks.source import BenchmarkCopy, LoadReport, PlacedTask, rows

OUTSIDE: Final = "of a contest outside the given dates"
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
class _ContestDays(NamedTuple):
    """The days of the first and the last contest."""

    first: date
    last: date


def read(
    copy: BenchmarkCopy, options: Mapping[str, str], report: LoadReport
) -> Iterator[PlacedTask]:
    """The problems of these releases and days, each decoded when it is taken.

    Raises:
        ConfigError: There is no such release, or a date isn't one.
        FormatError: A file or a row isn't as expected.
    """
    release = options.get("release")
    names = FILES if release is None else _list_release_files(release)
    window = _ContestDays(
        _parse_day(options.get("from", "0001-01-01"), "from"),
        _parse_day(options.get("to", "9999-12-31"), "to"),
    )
    if window.first > window.last:
        raise ConfigError(f"from {window.first} is after to {window.last}; exchange them")
    if copy.single_file() is not None and release is not None:
        raise ConfigError(
            f"{copy.name} is one file, which has no releases; leave out release, or name the "
            "folder with the files of all releases"
        )
    return _read_tasks(copy, names, window, report, needs_all=release is not None)


def _read_tasks(
    copy: BenchmarkCopy,
    names: tuple[str, ...],
    window: _ContestDays,
    report: LoadReport,
    *,
    needs_all: bool,
) -> Iterator[PlacedTask]:
    strict = DatasetBuilder(strict=True)
    for path in _find_files(copy, names, needs_all=needs_all):
        report.source = copy.name
        for place, record in rows(path, needs=_NEEDS, wants=_WANTS):
            with strict.row(place):
                day = _read_day(record["contest_date"])
                if window.first <= day <= window.last:
                    yield PlacedTask(place, _make_task(record, day))
                else:
                    report.skipped[OUTSIDE] += 1


def _find_files(copy: BenchmarkCopy, names: tuple[str, ...], *, needs_all: bool) -> Iterator[Path]:
    """The files, each fetched once the one before it has been read."""
    file = copy.single_file()
    if file is not None:
        yield file
        return
    any_found = False
    for name in names:
        paths = copy.need([name]) if needs_all else copy.find([name])
        any_found = any_found or bool(paths)
        yield from paths
    if not any_found:
        copy.need(names)


def _list_release_files(release: str) -> tuple[str, ...]:
    match = _RELEASE.fullmatch(release)
    if not match:
        raise ConfigError(
            f"there is no release {release!r}; write release_v6 for all up to v6, v6 for v6 "
            "alone, or v4_v6"
        )
    cumulative, single, first, last = match.groups()
    if single is None:
        start, end = int(first), int(last)
    else:
        start, end = 1 if cumulative else int(single), int(single)
    if start > end:
        raise ConfigError(f"the release {release!r} ends before it begins; exchange its numbers")
    return FILES[start - 1 : end]


def _parse_day(text: str, name: str) -> date:
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ConfigError(f"{name} is {text!r}; write a day like 2024-08-01")


def _read_day(value: object) -> date:
    """The day of a contest, from a text such as 2024-08-01T00:00:00 or a table's date."""
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError:
        raise DataError("contest_date isn't a date such as 2024-08-01T00:00:00") from None


def _make_task(record: Record, day: date) -> Task:
    starter = label_text(record["starter_code"], "starter_code")
    tests = [
        *decode_tests(record["public_test_cases"], "public_test_cases"),
        *decode_tests(record["private_test_cases"], "private_test_cases"),
    ]
    query = Query(
        f"livecodebench-{identifier(record['question_id'], 'question_id')}",
        _write_prompt(record, starter),
        benchmark="livecodebench",
        domain=label_text(record.get("platform"), "platform"),
    )
    return Task(
        query=query,
        grader="code",
        options={
            "tests": tests,
            "function": _read_function_name(record, tests),
            "starter_code": starter,
            "difficulty": label_text(record.get("difficulty"), "difficulty"),
            "contest_date": day.isoformat(),
        },
    )


def _write_prompt(record: Record, starter: str) -> str:
    title = label_text(record.get("question_title"), "question_title").strip()
    content = require_text(record["question_content"], "question_content").strip()
    problem = f"{title}\n\n{content}" if title else content
    if not starter.strip():
        return f"{_BY_STDIN}\n\n{problem}"
    return f"{_BY_FUNCTION}\n\n{problem}\n\n```python\n{starter.rstrip()}\n```"


def _read_function_name(record: Record, tests: list[dict[str, str]]) -> str | None:
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
        content = json.loads(metadata) if isinstance(metadata, str) else metadata
    except (ValueError, RecursionError):
        raise DataError("metadata isn't JSON") from None
    name = content.get("func_name") if isinstance(content, dict) else None
    return require_text(name, "metadata: func_name")


MAX_DECODED: Final = 2**29
"""Bytes of one problem's tests, decompressed."""
_FIELDS = ("input", "output", "testtype")
_TEXT = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_HARMLESS = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT"})


def decode_tests(cell: object, name: str, *, limit: int = MAX_DECODED) -> list[dict[str, str]]:
    """The tests of a cell: `input`, `output`, and `type`, which is stdin or functional.

    Args:
        cell: A list, the JSON of one, or such JSON pickled and compressed.
        name: The cell's name, for messages.
        limit: The most bytes that it may decompress to.

    Raises:
        DataError: The cell has none of these forms.
    """
    content = cell
    if isinstance(cell, str) and not cell[:64].lstrip().startswith("["):
        content = _read_pickled_text(_decompress(cell, name, limit), name)
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            raise DataError(f"{name} isn't JSON") from None
    if not isinstance(content, list):
        raise DataError(
            f"{name} is of the type {type(content).__name__}; it must be a list of tests"
        )
    return [_decode_test(item, name) for item in content]


def _decode_test(item: Any, name: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise DataError(f"{name}: a test is a {type(item).__name__}; it must be an object")
    stdin, expected, kind = (cell_text(item.get(f), f"{name}: {f}") for f in _FIELDS)
    if kind not in ("stdin", "functional"):
        raise DataError(f"{name}: a test's testtype must be stdin or functional")
    return {"input": stdin, "output": expected, "type": kind}


def _decompress(cell: str, name: str, limit: int) -> bytes:
    try:
        packed = base64.b64decode(cell.encode("ascii"), validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, limit)
    except (UnicodeEncodeError, binascii.Error, zlib.error):
        raise DataError(f"{name} is neither JSON nor compressed base64") from None
    if unpacker.unconsumed_tail:
        raise DataError(f"{name} unpacks to more than {limit:,} bytes")
    if not unpacker.eof:
        raise DataError(f"{name} is cut off; fetch the file again")
    return data


@final
class _PickleTextReader:
    """Checks a pickle's instructions in order, and keeps the single text that they push."""

    def __init__(self) -> None:
        self.text: str | None = None

    def accept(self, instruction: str, argument: object) -> bool:
        """Whether the instruction is allowed here."""
        if instruction in _TEXT and self.text is None and isinstance(argument, str):
            self.text = argument
            return True
        return instruction in _HARMLESS


def _read_pickled_text(data: bytes, name: str) -> str:
    """The text in a pickle, which isn't loaded."""
    reader = _PickleTextReader()
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name == "STOP":
                if reader.text is None or position is None or position + 1 != len(data):
                    break
                return reader.text
            if not reader.accept(opcode.name, argument):
                raise DataError(
                    f"{name} is a pickle with the instruction {opcode.name}, which a text alone "
                    "doesn't need; it isn't read, since it could run code"
                )
    except (ValueError, UnicodeDecodeError, OverflowError):
        raise DataError(f"{name} is a broken pickle") from None
    raise DataError(f"{name} is a pickle of something other than a single text")
