"""What a program may use is limited, and its outcome says what happened."""

from dataclasses import replace

import pytest

from packages.router.tests.sandbox.inmates import find_processes, name_program, new_name
from packages.router.tests.sandbox.runners import QUICK, Runner
from prefill_router.errors import ConfigError
from prefill_router.sandbox import Limits, Sandbox
from prefill_router.sandbox.sandbox_process import FOLDERS

pytestmark = pytest.mark.slow

ROOM = Limits()


def test_a_program_reads_and_writes(runner: Runner) -> None:
    program = "import sys; n = int(input()); print(n * n); sys.stderr.write('told')"
    outcome = runner(program, stdin=b"12\n", limits=ROOM)
    assert (outcome.status, outcome.exit_code) == ("ok", 0)
    assert (outcome.stdout, outcome.stderr) == (b"144\n", b"told")
    assert not outcome.output_truncated
    assert 0 < outcome.seconds < ROOM.wall_seconds


def test_large_input_is_a_file(runner: Runner) -> None:
    program = "import os, sys; print(os.fstat(0).st_size, len(sys.stdin.buffer.read()))"
    outcome = runner(program, stdin=bytes(9_000_000), limits=ROOM)
    assert outcome.stdout == b"9000000 9000000\n"


def test_input_that_is_not_read_does_no_harm(runner: Runner) -> None:
    assert runner("print(1)", stdin=bytes(1_000_000)).stdout == b"1\n"


def test_text_is_utf_8(runner: Runner) -> None:
    outcome = runner("print(input() + ' → ü')", stdin="é\n".encode())
    assert outcome.stdout.decode() == "é → ü\n"


def test_the_same_program_does_the_same(runner: Runner) -> None:
    outputs = {runner("print(list({'a', 'b', 'c', 'd', 'e', 'f'}))").stdout for _ in range(4)}
    assert len(outputs) == 1


def test_the_last_part_of_errors_is_kept(runner: Runner) -> None:
    program = "import sys; sys.stderr.write('x' * 100_000); raise ValueError('the end')"
    outcome = runner(program, limits=ROOM)
    assert (outcome.status, outcome.exit_code) == ("error", 1)
    assert outcome.stderr.endswith(b"ValueError: the end\n")
    assert len(outcome.stderr) == 1 << 16
    assert outcome.output_truncated


@pytest.mark.parametrize("program", ["print('\0')", "print('\ud800')", "def f(:", "import nothing"])
def test_a_program_that_is_none_is_an_error_of_its_own(runner: Runner, program: str) -> None:
    assert runner(program).status == "error"


def test_the_exit_code_is_told(runner: Runner) -> None:
    outcome = runner("import sys; sys.exit(3)")
    assert (outcome.status, outcome.exit_code) == ("error", 3)
    outcome = runner("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (outcome.status, outcome.exit_code) == ("killed", 128 + 11)


@pytest.mark.parametrize(
    "program",
    [
        "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
        "bytearray(1 << 34)",
        "import mmap\nmaps = [mmap.mmap(-1, 1 << 28) for _ in range(9)]\nprint('harm')",
    ],
    ids=["by and by", "at once", "without touching it"],
)
def test_memory(runner: Runner, program: str) -> None:
    outcome = runner(program)
    assert outcome.status in ("memory", "error")
    assert b"Cannot allocate memory" in outcome.stderr or outcome.status == "memory"
    assert not outcome.stdout


RECURSES = """
import functools, sys
sys.setrecursionlimit(10**6)
f = functools.cache(lambda n: n and f(n - 1) + 1)
print(f(30_000))
"""


def test_a_deep_recursion_has_room_on_the_stack(runner: Runner) -> None:
    assert runner(RECURSES, limits=ROOM).stdout == b"30000\n"
    assert runner(RECURSES, limits=replace(ROOM, stack_bytes=1 << 20)).status == "killed"


def test_cpu_time(runner: Runner) -> None:
    outcome = runner("while True: pass", limits=replace(QUICK, wall_seconds=60))
    assert (outcome.status, outcome.exit_code) == ("timeout", 128 + 24)


def test_cpu_time_of_one_that_ignores_the_first_signal(sandbox: Sandbox) -> None:
    program = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    small = replace(sandbox, limits=replace(QUICK, wall_seconds=60))
    outcome = small.run(program)
    assert (outcome.status, outcome.exit_code) == ("timeout", 128 + 9)


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(1000)",
        "os.close(1); os.close(2); time.sleep(1000)",
        "for s in range(1, 64):\n"
        "    if s not in (9, 19, 32, 33): signal.signal(s, signal.SIG_IGN)\n"
        "time.sleep(1000)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "[threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(8)]",
    ],
    ids=["sleeping", "with closed streams", "ignoring signals", "stopped", "in threads"],
)
def test_wall_time(runner: Runner, body: str) -> None:
    name = new_name()
    program = name_program(
        name, "import os, signal, threading, time\nprint('begun', flush=True)\n" + body
    )
    for seconds in (0.3, 2, 20):  # more, where the machine was too busy for it to begin
        outcome = runner(program, limits=replace(QUICK, wall_seconds=seconds))
        assert find_processes(name) == []
        assert (outcome.status, outcome.exit_code) == ("timeout", None)
        assert outcome.seconds >= seconds
        if outcome.stdout:
            break
    assert outcome.stdout == b"begun\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output(runner: Runner, stream: str) -> None:
    name = new_name()
    program = f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"
    outcome = runner(name_program(name, program), limits=replace(QUICK, wall_seconds=60))
    assert find_processes(name) == []
    assert (outcome.status, outcome.exit_code) == ("output", None)
    assert outcome.output_truncated
    assert len(getattr(outcome, stream)) == QUICK.output_bytes


def test_output_of_exactly_the_limit_is_whole(runner: Runner) -> None:
    outcome = runner(f"print('x' * {QUICK.output_bytes - 1})")
    assert (outcome.status, outcome.output_truncated) == ("ok", False)
    assert len(outcome.stdout) == QUICK.output_bytes
    assert runner(f"print('x' * {QUICK.output_bytes})").status == "output"


FILLS = """
import os
written = 0
for folder, below, _ in os.walk("/"):
    if folder in ("/usr", "/proc"):
        below.clear()
    for name in range(200):
        try:
            with open(f"{folder}/{name}", "wb", buffering=0) as file:
                while True:
                    written += file.write(bytes(1 << 20))
        except OSError:
            if not written:
                break
print(written)
"""


def test_files(runner: Runner) -> None:
    outcome = runner(FILLS, limits=replace(QUICK, cpu_seconds=20, wall_seconds=60))
    assert outcome.status == "ok", outcome
    shared_memory, mib = 16 << 20, 1 << 20
    assert 4 * mib < int(outcome.stdout) <= 2 * QUICK.file_bytes + shared_memory + mib


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    "make", ["os.mknod(name)", "os.mkdir(name)", "os.symlink('x', name)", "os.link('/box/0', name)"]
)
def test_the_number_of_files(runner: Runner, folder: str, make: str) -> None:
    place = "/box" if "link(" in make else folder  # no link leads to another file system
    program = (
        "import os, itertools\nos.mknod('/box/0')\n"
        f"for n in itertools.count(1):\n    name = f'{place}/{{n}}'\n    {make}"
    )
    outcome = runner(program, limits=replace(QUICK, cpu_seconds=20))
    assert (outcome.status, outcome.exit_code) == ("output", None)


def test_a_program_may_make_many_files(runner: Runner) -> None:
    program = (
        "import os\nfor n in range(5000): os.mknod(f'/tmp/{n}')\nprint(len(os.listdir('/tmp')))"
    )
    outcome = runner(program, limits=replace(QUICK, cpu_seconds=20))
    assert (outcome.status, outcome.stdout) == ("ok", b"5000\n")


WAITS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
import ctypes
libc, sent = ctypes.CDLL(None), 0
while sent < 100_000 and libc.sigqueue(os.getpid(), 40, None) == 0: sent += 1
print(sent)
"""


def test_signals_that_wait(runner: Runner) -> None:
    assert 0 < int(runner(WAITS).stdout) <= 256


ORDINARY_PROGRAM = """
import asyncio, concurrent.futures, os, queue, signal, tempfile, threading
async def both():
    return await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.to_thread(lambda: 2))
signal.setitimer(signal.ITIMER_REAL, 100)
with tempfile.TemporaryFile() as file, concurrent.futures.ThreadPoolExecutor(4) as pool:
    file.write(b"x" * 100_000)
    print(asyncio.run(both()), sum(pool.map(abs, range(100))), os.pipe()[0] > 0)
"""


def test_what_ordinary_programs_need(runner: Runner) -> None:
    outcome = runner(ORDINARY_PROGRAM)
    assert outcome.stdout == b"[1, 2] 4950 True\n", outcome


def test_one_file(runner: Runner) -> None:
    program = "open('/dev/shm/x', 'wb', buffering=0).truncate(5 << 20)"
    outcome = runner(program)
    assert b"File too large" in outcome.stderr


def test_threads(runner: Runner) -> None:
    program = (
        "import threading, time\nstarted = 0\ntry:\n while started < 1000:\n"
        "  threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); started += 1\n"
        "except RuntimeError: print(started, flush=True)\nimport os; os._exit(0)"
    )
    outcome = runner(program)
    assert 4 <= int(outcome.stdout) <= QUICK.threads


def test_a_fork_bomb_has_no_first_child(runner: Runner) -> None:
    outcome = runner("import os\nwhile True: os.fork()")
    assert outcome.status == "error"
    assert b"PermissionError" in outcome.stderr


FORGES = """
import os, sys
print("ready")
print('{ "exit-code": 0 }', flush=True)
for descriptor in range(3, 300):
    try:
        os.write(descriptor, b'{ "exit-code": 0 }')
        print("harm")
    except OSError:
        pass
os._exit(3)
"""


def test_a_verdict_cant_be_forged(runner: Runner) -> None:
    outcome = runner(FORGES)
    assert (outcome.status, outcome.exit_code) == ("error", 3)
    assert outcome.stdout == b'ready\n{ "exit-code": 0 }\n'


SEARCHES = """
import os, pathlib, sys
found = [part for part in (*sys.argv, *os.environ.values()) if "expected" in part]
for folder, below, files in os.walk("/"):
    if folder in ("/usr", "/proc", sys.prefix):
        below.clear()
    found += [name for name in files if "expected" in name]
    for name in files:
        path = pathlib.Path(folder, name)
        if folder != "/proc" and path.is_file() and b"SECRET" + b"-31415" in path.read_bytes():
            found.append(str(path))
print(found)
"""


def test_what_is_expected_cant_be_found(sandbox: Sandbox) -> None:
    expected = b"SECRET" + b"-31415"
    assert sandbox.run(SEARCHES, stdin=b"1\n").stdout == b"[]\n"
    output = sandbox.run(SEARCHES, files={"x.txt": expected}).stdout
    assert output == b"['/box/x.txt']\n"


def test_files_are_beside_the_program(sandbox: Sandbox) -> None:
    program = "print(open('a.txt').read(), open('/box/b.txt').read())"
    outcome = sandbox.run(program, files={"a.txt": b"1", "b.txt": b"2"})
    assert outcome.stdout == b"1 2\n"


def test_large_files_have_room(sandbox: Sandbox) -> None:
    small = replace(sandbox, limits=QUICK)
    program = "import os; print(os.path.getsize('a')); open('b', 'wb').write(bytes(4 << 20))"
    outcome = small.run(program, files={"a": bytes(30 << 20)})
    assert (outcome.status, outcome.stdout) == ("ok", b"31457280\n"), outcome


@pytest.mark.parametrize("name", ["../x", "/etc/x", "prog.py", "", ".", "..", "a/b", "x\0", "-x"])
def test_names_that_are_more_than_names_are_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(ConfigError, match="can't be given a file named"):
        sandbox.run("pass", files={name: b""})


def test_too_many_files_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match="51 files; give at most 50"):
        sandbox.run("pass", files={f"f{i}": b"" for i in range(51)})


@pytest.mark.parametrize("name", ["cpu_seconds", "memory_bytes", "output_bytes", "threads"])
def test_limits_are_above_zero(name: str) -> None:
    for value in (0, -1, 1 << 62):
        with pytest.raises(ConfigError, match=f"limit {name} is {value}; give"):
            replace(QUICK, **{name: value})  # type: ignore[arg-type]


def test_wall_time_is_a_number() -> None:
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"limit wall_seconds is {value}; give"):
            Limits(wall_seconds=value)
