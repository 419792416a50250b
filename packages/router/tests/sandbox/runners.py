"""Runs programs in the sandbox: in this process, or in one of an ordinary user.

Run as a program it is the ordinary user's part: each line of standard input is a run, as JSON;
the line printed then is its outcome, or why there is no sandbox.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import lazy_loader

import prefill_router
from prefill_router.errors import SandboxError
from prefill_router.sandbox import Limits, Outcome, Sandbox

ORDINARY = 1000
QUICK = Limits(
    cpu_seconds=1,
    wall_seconds=30,
    memory_bytes=256 << 20,
    output_bytes=1 << 16,
    file_bytes=4 << 20,
    threads=16,
    stack_bytes=1 << 20,
)


class Runner(Protocol):
    def __call__(self, program: str, *, stdin: bytes = b"", limits: Limits = QUICK) -> Outcome: ...


class OwnRunner:
    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def __call__(self, program: str, *, stdin: bytes = b"", limits: Limits = QUICK) -> Outcome:
        return replace(self.sandbox, limits=limits).run(program, stdin=stdin)


class OtherUserRunner:
    def __init__(self, process: subprocess.Popen[str], *, folder: Path, python: str) -> None:
        self.process = process
        self.folder = folder
        self.python = python

    def run_bare(self, *wrapper: str, program: str) -> str:
        """The last line of a program's errors; the user runs it inside another program."""
        process = subprocess.run(
            [*wrapper, self.python, "-B", "-c", program],
            user=ORDINARY,
            group=ORDINARY,
            extra_groups=[],
            env={"PYTHONPATH": str(self.folder), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not process.stdout
        return process.stderr.strip().splitlines()[-1]

    def __call__(self, program: str, *, stdin: bytes = b"", limits: Limits = QUICK) -> Outcome:
        answer = self.ask([program, base64.b64encode(stdin).decode(), asdict(limits)])
        if "error" in answer:
            raise SandboxError(answer["error"])
        for name in ("stdout", "stderr"):
            answer[name] = base64.b64decode(answer[name])
        return Outcome(**answer)

    def ask(self, question: Any) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer


@contextmanager
def ordinary_runner(folder: Path, python: str) -> Iterator[OtherUserRunner]:
    """A runner of another user; `folder` is one that everybody may read."""
    package = Path(prefill_router.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors", "minipool", "assets")
    for path in (package, Path(lazy_loader.__file__).parent):
        shutil.copytree(path, folder / path.name, ignore=ignored)
    script = folder / "ordinary.py"
    shutil.copy(__file__, script)
    with subprocess.Popen(
        [python, "-B", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=ORDINARY,
        group=ORDINARY,
        extra_groups=[],
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        cwd="/",
    ) as process:
        yield OtherUserRunner(process, folder=folder, python=python)
        assert process.stdin
        process.stdin.close()


def answer_lines() -> None:
    try:
        sandbox = Sandbox.open()
    except SandboxError as error:
        for _ in sys.stdin:
            sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
            sys.stdout.flush()
        return
    for line in sys.stdin:
        program, stdin, limits = json.loads(line)
        outcome = OwnRunner(sandbox)(
            program, stdin=base64.b64decode(stdin), limits=Limits(**limits)
        )
        answer = asdict(outcome)
        for name in ("stdout", "stderr"):
            answer[name] = base64.b64encode(answer[name]).decode()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    os.umask(0o022)
    answer_lines()
