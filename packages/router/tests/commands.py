"""Runs the command line in this process, as its own process would."""

import io
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from prefill_router.cli import main


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Job:
    """The folders of a finished job, and how to reach its encoder."""

    answers: Path
    tiny: Path
    states: Path
    split: Path
    router: Path
    report: Path


RUN_EACH = """
import contextlib, io, json, sys
from prefill_router.cli import main

results = []
for words in json.loads(sys.argv.pop()):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["prefill-router", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
"""A program for another environment: `main` for each of the commands that `words_of_each` wrote."""
FIT = ("fit", "--no-verdict")
"""A fit without the five more that its verdict takes."""
SEALED_FIT = (*FIT, "--test=0.15")
"""Such a fit with a sealed part, on which it is judged."""


def run(*arguments: object, stdin: bytes = b"") -> CommandResult:
    streams = [io.TextIOWrapper(io.BytesIO(b), encoding="utf-8") for b in (stdin, b"", b"")]
    argv = ["prefill-router", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "stdin", streams[0]),
        redirect_stdout(streams[1]),
        redirect_stderr(streams[2]),
    ):
        try:
            main()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
    texts = []
    for stream in streams[1:]:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return CommandResult(code, *texts)


def words_of_each(*commands: Sequence[object]) -> str:
    """The last argument of `RUN_EACH`."""
    return json.dumps([list(map(str, command)) for command in commands])


def read_each(printed: str) -> list[CommandResult]:
    """How each command ended, from what `RUN_EACH` printed."""
    return [CommandResult(*result) for result in json.loads(printed.splitlines()[-1])]


def run_ok(*arguments: object, stdin: bytes = b"") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.code == 0, result.err
    return result.out


def check_refused(reason: str, *arguments: object, stdin: bytes = b"", code: int = 1) -> str:
    """Check that a command ends with one line that says why, and quotes no prompt."""
    result = run(*arguments, stdin=stdin)
    last = result.err.strip().splitlines()[-1] if result.err.strip() else ""
    assert result.code == code, (result.code, result.out, result.err)
    assert last.startswith("error: "), result.err
    assert "Traceback" not in result.err
    assert "of difficulty" not in result.err
    assert len(last) < 1000, last
    assert re.search(reason, last), last
    assert not result.out
    return last


def check_malformed(reason: str, *arguments: object) -> str:
    """Check that a command refuses its arguments."""
    return check_refused(reason, *arguments, code=2)


def flip(path: Path, *, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
