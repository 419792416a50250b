"""Programs that a test starts, which a test that fails doesn't wait for."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def run_program(words: Any, **options: Any) -> "Iterator[subprocess.Popen[Any]]":
    """A program, waited for at the end, and killed where the test fails before."""
    with subprocess.Popen(words, **options) as program:
        try:
            yield program
        except BaseException:
            program.kill()
            raise
