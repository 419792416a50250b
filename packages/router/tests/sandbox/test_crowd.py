"""Many programs at once, and the death of the process that runs them."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.programs import run_program
from packages.router.tests.sandbox.escapes import ESCAPES, outside
from packages.router.tests.sandbox.inmates import find_processes, name_program, new_name, wait_for
from packages.router.tests.sandbox.runners import QUICK
from prefill_router.sandbox import Outcome, Sandbox

pytestmark = pytest.mark.slow

HOSTILE = [
    "while True: pass",
    "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "import time\ntime.sleep(1000)",
    "import os, time\nos.close(1); os.close(2); time.sleep(1000)",
    "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
    "while True: print('x' * 4096)",
    "import sys\nwhile True: sys.stderr.write('x' * 4096)",
    "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "import threading\ndef spin():\n  while True: pass\nwhile True:\n"
    "  try: threading.Thread(target=spin).start()\n  except RuntimeError: pass",
    "import os\nn = 0\nwhile True:\n  n += 1\n"
    "  try: open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))\n  except OSError: pass",
    "import os, signal\nwhile True: os.kill(-1, signal.SIGTERM)",
    "import os, signal\nfor pid in range(1, 40000):\n"
    "  try: os.kill(pid, signal.SIGKILL) if pid != os.getpid() else None\n  except OSError: pass",
    "import os\nos.kill(os.getpid(), 9)",
    "import ctypes\nctypes.string_at(0)",
    *(escape.program for escape in ESCAPES if escape.control == "everybody"),
]
MIB = 1 << 20


@pytest.fixture
def reachable() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with outside(Path(name)) as outer_objects:
            yield outer_objects


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_hundred_hostile_programs_at_once_harm_nothing(
    sandbox: Sandbox, reachable: dict[str, Any]
) -> None:
    name, stdin = new_name(), json.dumps(reachable).encode()
    small = replace(sandbox, limits=replace(QUICK, wall_seconds=3, memory_bytes=128 * MIB))
    programs = [HOSTILE[i % len(HOSTILE)] for i in range(100)]
    project = sorted(p.stat().st_mtime_ns for p in Path(__file__).parent.glob("*.py"))
    sandbox.run("pass")
    files, memory, mounts = open_files(), resident_bytes(), Path("/proc/mounts").read_text()

    def run(program: str) -> Outcome:
        return small.run(name_program(name, program), stdin=stdin)

    with ThreadPoolExecutor(100) as pool:
        outcomes = list(pool.map(run, programs))
    assert find_processes(name) == []
    assert {outcome.status for outcome in outcomes} > {"timeout"}
    assert not [outcome for outcome in outcomes if b"harm" in outcome.stdout]
    assert max(len(outcome.stdout) for outcome in outcomes) <= QUICK.output_bytes
    assert open_files() == files
    assert resident_bytes() - memory < 64 * MIB
    assert Path("/proc/mounts").read_text() == mounts
    assert Path(reachable["written"]).read_text() == "untouched"
    assert project == sorted(p.stat().st_mtime_ns for p in Path(__file__).parent.glob("*.py"))
    assert sandbox.run("print(sum(range(int(input()))))", stdin=b"101").stdout == b"5050\n"


def test_many_good_programs_at_once_keep_their_answers(sandbox: Sandbox) -> None:
    def run(number: int) -> bytes:
        return sandbox.run("print(int(input()) ** 2)", stdin=str(number).encode()).stdout

    with ThreadPoolExecutor(16) as pool:
        outputs = list(pool.map(run, range(64)))
    assert outputs == [f"{n * n}\n".encode() for n in range(64)]


GRADES = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from prefill_router.sandbox import Limits, Sandbox
sandbox = Sandbox.open(limits=Limits(wall_seconds=1000))
print("open", flush=True)
with ThreadPoolExecutor(2) as pool:
    list(pool.map(sandbox.run, [sys.argv[1]] * 2))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_program_outlives_who_runs_it(sandbox: Sandbox, number: signal.Signals) -> None:
    del sandbox
    name = new_name()
    program = name_program(name, "import time; time.sleep(1000)")
    with run_program([sys.executable, "-c", GRADES, program]) as grades:
        assert wait_for(name, present=True)
        grades.send_signal(number)
    assert wait_for(name, present=False)


def test_none_is_left_by_an_end_at_any_moment(sandbox: Sandbox) -> None:
    del sandbox
    name, draw = new_name(), random.Random(0)
    program = name_program(name, "import time; time.sleep(1000)")
    for _ in range(8):
        child = [sys.executable, "-c", GRADES, program]
        with run_program(child, stdout=subprocess.PIPE) as grades:
            assert grades.stdout
            assert grades.stdout.readline() == b"open\n"
            time.sleep(draw.uniform(0, 0.08))
            grades.kill()
    time.sleep(0.3)  # for one that would start only now
    assert wait_for(name, present=False)
