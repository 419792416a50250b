"""What other programs see of a real process: exit codes, signals, pipes, bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from packages.router.tests.commands import SEALED_FIT, Job, check_refused

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-c", "from prefill_router.cli import main; main()"]


INTERRUPTED = """
import os, signal
from prefill_router.cli import main
from prefill_router.progress import BarProgress, SilentProgress

def task(self, label, *, total):
    os.kill(os.getpid(), signal.SIGINT)
    return SilentProgress().task(label, total=total)

BarProgress.task = task
main()
"""
"""A process that is interrupted when it sets to work."""


SWALLOWED = """
import os, signal
from prefill_router.cli import main
from prefill_router.progress import BarProgress

def task(self, label, *, total):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("Invalid bounding box") from None

BarProgress.task = task
main()
"""
"""One whose library makes an error of its own of the interruption, as matplotlib's does."""


def start(
    *arguments: object, env: dict[str, str] | None = None, program: list[str] = PROGRAM
) -> subprocess.Popen[bytes]:
    command = [*map(os.fsencode, program), *(os.fsencode(str(a)) for a in arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env={**os.environ, **(env or {})})


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_exit_codes(job: Job, tmp_path: Path) -> None:
    encoding, failed, malformed = (
        start("describe", job.answers),
        start("describe", tmp_path),
        start("describe", "--nonsense"),
    )
    assert finish(encoding)[0] == 0
    code, out, err = finish(failed)
    assert (code, out) == (1, b"")
    assert err.startswith(b"error: ")
    assert err.count(b"\n") == 1
    assert finish(malformed)[0] == 2


def test_interrupted_inside_a_library(job: Job, tmp_path: Path) -> None:
    fit = (*SEALED_FIT, job.answers, "--store", job.states, "--out", tmp_path / "router")
    code, out, err = finish(start(*fit, program=[sys.executable, "-c", SWALLOWED]))
    assert (code, out) == (130, b"")
    assert b"interrupted; what was finished is kept" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("command", ["encode", "fit", "evaluate"])
def test_interrupted(job: Job, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    arguments: dict[str, tuple[object, ...]] = {
        "encode": ("encode", job.answers, "--encoder", "minilm"),  # which needs no torch
        "fit": ("fit", "--no-verdict", "--test=0.15", job.answers, "--store", job.states),
        "evaluate": ("evaluate", job.router, "--data", job.answers, "--store", job.states),
    }
    program = [sys.executable, "-c", INTERRUPTED]
    code, printed, err = finish(start(*arguments[command], "--out", out, program=program))
    assert (code, printed) == (130, b"")
    assert b"interrupted; what was finished is kept" in err
    assert b"Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if command == "encode" else [])


def test_bytes_that_are_no_text_on_the_command_line(job: Job, tmp_path: Path) -> None:
    words = (job.router, "parrot \udcff", "--encoder-folder", job.tiny)
    said = check_refused("query 'request 1': the prompt has a lone surrogate", "route", *words)
    assert "parrot" not in said
    odd = tmp_path / "odd \udcff"
    code, _, err = finish(start("describe", odd))
    assert code == 1
    assert err.startswith(b"error: ")
    code, out, err = finish(start("split", job.answers, "--out", odd))
    assert (code, err) == (0, b"")
    assert odd.is_file()
    assert b"\\udcff" in out


def test_terminal_that_lacks_our_characters(job: Job) -> None:
    env = {"PYTHONIOENCODING": "ascii"}
    code, out, err = finish(start("describe", job.answers, env=env))
    assert (code, err) == (0, b"")
    assert b"target-0" in out


def test_reader_that_has_seen_enough(job: Job) -> None:
    process = start("describe", job.answers, "--json")
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) in (0, 1)


FULL = """
import resource, signal, sys
sys.dont_write_bytecode = True  # it would be cut off, and found by all others
from prefill_router.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
main()
"""
"""A process that may write no file of more than 600 bytes, as on a full disk."""


@pytest.mark.parametrize("command", ["import", "split", "encode", "sweep", "fit", "evaluate"])
def test_disk_without_room(job: Job, tmp_path: Path, command: str) -> None:
    table = tmp_path / "answers.csv"
    table.write_text("prompt,target,correct\n" + "".join(f"{i}?,a,1\n" for i in range(900)))
    arguments: dict[str, tuple[object, ...]] = {
        "import": ("import", "long", table),
        "split": ("split", job.answers),
        "encode": ("encode", job.answers, "--encoder", "minilm"),  # which needs no torch
        "sweep": ("sweep", job.answers, "--store", job.states, "--dim", 4),
        "fit": (*SEALED_FIT, job.answers, "--store", job.states, "--dim", 4),
        "evaluate": ("evaluate", job.router, "--data", job.answers, "--store", job.states),
    }
    out = tmp_path / "out" / "put"
    program = [sys.executable, "-c", FULL]
    code, _, err = finish(start(*arguments[command], "--out", out, program=program))
    assert code == 1, err
    assert b"Traceback" not in err
    assert b"error: " in err
    files = [path for path in out.parent.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix != ".lock" and path.name != "manifest.json"] == []
