"""Runs commands in forks of one process, such as `killed_process.py`, and sends them signals."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packages.router.tests.programs import run_program

ROOT = Path(__file__).parents[3]
Run = Callable[[Sequence[str], int, float], tuple[int, float]]
"""Runs a command, sends it a signal (0 for none) after so many seconds; exit code and seconds."""


@contextmanager
def forks(log: Path, program: str = "packages.router.tests.killed_process") -> Iterator[Run]:
    """A function that runs commands; their errors go to a file."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    with (
        log.open("w") as errors,
        run_program(
            [sys.executable, "-m", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **single, "TOKENIZERS_PARALLELISM": "false"},
            cwd=ROOT,
        ) as process,
    ):

        def run(arguments: Sequence[str], number: int, seconds: float) -> tuple[int, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([arguments, number, seconds]) + "\n")
            process.stdin.flush()
            code, took = json.loads(process.stdout.readline())
            return code, took

        yield run
