"""One run of a program in the sandbox: its limits, its command line, its processes, its outcome.

The run's output is read while it runs, and the run is stopped when it writes too much or takes too
long.

The command line combines bubblewrap, two tools of util-linux, and a Python interpreter. It has two
forms, for root and for ordinary users. As root, bubblewrap creates the namespaces with root's own
privileges, and the program gets no capability and a user id that no other process has. User
namespaces aren't used, because a root that is mapped to another id still counts as root where the
kernel checks ids (`/proc/sys` was writable, and the limit on processes had no effect). For an
ordinary user there are only user namespaces.
"""

import os
import posixpath
import re
import select
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Literal, final

from prefill_router.errors import ConfigError, SandboxError

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]
"""How a program ended.

- `ok`: by itself, with exit code 0.
- `error`: by itself, with another exit code.
- `timeout`: it used up its CPU time or its wall time.
- `memory`: by itself, with Python's error that no memory was left.
- `output`: it exceeded the limit on output, or on the number of files.
- `killed`: by a signal.
"""

MIB = 1 << 20


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one run.

    Attributes:
        cpu_seconds: CPU time of all threads together.
        wall_seconds: Wall-clock time from the program's start to its end.
        memory_bytes: Address space. A program has one process, so this bounds its memory, too.
        output_bytes: Size of standard output, and of standard error.
        file_bytes: Size of one file, and of all files in each of `/box` and `/tmp`.
        threads: Concurrent threads, the first one included.
        stack_bytes: The stack of the first thread; by default, others have as much.
    """

    cpu_seconds: int = 6
    wall_seconds: float = 10.0
    memory_bytes: int = 4096 * MIB
    output_bytes: int = MIB
    file_bytes: int = 64 * MIB
    threads: int = 64
    stack_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < 1 << 62:
                raise ConfigError(
                    f"the sandbox's limit {field.name} is {value}; give a number above 0"
                )


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one run.

    The program controls all of it: it can choose any exit code, any output and, unless it is
    stopped, any status. So a verdict must be made outside, from the output, with data that the
    program never sees.

    Attributes:
        status: How the program ended.
        exit_code: The exit code, 128 plus the signal where one ended it; None where it was stopped.
        stdout: The beginning of standard output, up to the limit.
        stderr: The end of standard error, up to 64 KiB.
        seconds: Wall-clock time from the program's start to its end.
        output_truncated: Whether a part of the output is missing.
    """

    status: Status
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    output_truncated: bool


OLDEST_BUBBLEWRAP = (0, 8)
OLDEST_PYTHON = (3, 11)
NEEDED_PACKAGES = "bubblewrap and util-linux (apt-get install bubblewrap util-linux)"
_SYSTEM_PATH = "/usr/bin:/bin:/usr/local/bin"
_ASK_PYTHON = "import sys; print(sys.base_prefix, *sys.version_info[:2], sep='\\n')"
_ASK_SECONDS = 30


@final
@dataclass(frozen=True)
class SandboxTools:
    """The absolute paths of the tools.

    Attributes:
        bwrap: bubblewrap.
        setpriv: Changes the user and drops capabilities; under /usr, which the sandbox can read.
        prlimit: Sets limits; under /usr too.
        python: The interpreter that runs the programs.
        python_prefix: The folder of the interpreter and its library.
    """

    bwrap: str
    setpriv: str
    prlimit: str
    python: str
    python_prefix: str


def find_tools(*, python: Path | None) -> SandboxTools:
    """Find the tools; the interpreter is the present one unless another is given.

    Raises:
        SandboxError: A tool is missing or too old; the error says what to install.
    """
    bwrap, setpriv, prlimit = (_find_tool(name) for name in ("bwrap", "setpriv", "prlimit"))
    _check_bubblewrap(bwrap)
    prefix, version = _ask_version(python) if python else (sys.base_prefix, sys.version_info[:2])
    if version < OLDEST_PYTHON:
        raise SandboxError(
            f"{python} is Python {_format_version(version)}; the sandbox needs "
            f"{_format_version(OLDEST_PYTHON)} or newer"
        )
    executable = f"{prefix}/bin/python{_format_version(version)}"
    if not os.access(executable, os.X_OK):
        raise SandboxError(f"{executable} can't be run; name another interpreter for the programs")
    return SandboxTools(bwrap, setpriv, prlimit, executable, prefix)


def _find_tool(name: str) -> str:
    path = shutil.which(name, path=_SYSTEM_PATH)
    if path is None:
        raise SandboxError(
            f"programs run in a sandbox, which needs {name}; it isn't there, so install "
            f"{NEEDED_PACKAGES}"
        )
    return path


def _check_bubblewrap(bwrap: str) -> None:
    version = _read_output(bwrap, "--version")
    match = re.search(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_BUBBLEWRAP:
        raise SandboxError(
            f"{bwrap} is {version.strip() or 'of unknown version'}; the sandbox needs bubblewrap "
            f"{_format_version(OLDEST_BUBBLEWRAP)} or newer (apt-get install bubblewrap)"
        )


def _ask_version(python: Path) -> tuple[str, tuple[int, int]]:
    lines = _read_output(str(python), "-I", "-c", _ASK_PYTHON).splitlines()
    if len(lines) != 3:
        raise SandboxError(f"{python} isn't a Python interpreter; name another")
    return lines[0], (int(lines[1]), int(lines[2]))


def _read_output(*command: str) -> str:
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout


def _format_version(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


_NAMESPACES_AS_ROOT = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL"),
    *("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
)
_NAMESPACES_AS_USER = (
    *("--unshare-user", "--unshare-all", "--disable-userns"),
    *("--cap-drop", "ALL", "--uid", "65534", "--gid", "65534"),
)
_LIFE = ("--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/box",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # makes runs of the same program on the same input alike
    "OMP_NUM_THREADS": "1",
}
_SYSTEM = (
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"),
    *("--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
    *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
    # Process 1 is bubblewrap. With an ordinary user's id the program could write to its memory.
    *("--perms", "0000", "--size", "4096", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1"),
    *("--dev", "/dev"),
)
_SEAL = ("--chdir", "/box", "--remount-ro", "/dev", "--remount-ro", "/")
"""Read-only mounts; /dev is one, since it is a file system in memory without a size limit."""

FOLDERS = ("/box", "/tmp", "/dev/shm")
"""The folders that a program may write to."""

_SHM_BYTES = 16 * MIB
PROGRAM_NAME = "prog.py"
_INPUT = "/input"
READY = b"ready\n"

_START = f"""{{ echo 1000 >/proc/self/oom_score_adj; }} 2>/dev/null
echo {READY.decode().strip()}
read -r go && exec "$@" <{_INPUT}"""
"""Prints that it is ready, waits for a line, and becomes the program.

If its starter is gone, it ends. The program is the first process that the kernel kills when the
machine runs out of memory.
"""


def command(
    tools: SandboxTools,
    limits: Limits,
    *,
    uid: int | None,
    info: int,
    seccomp: int,
    stdin: int,
    files: Mapping[str, int],
    content_bytes: int,
) -> tuple[str, ...]:
    """The command that runs a program once it reads a line from its standard input.

    Args:
        tools: The paths of the tools.
        limits: The limits of the program.
        uid: The program's user id, where root starts it; None for an ordinary user.
        info: The file descriptor on which bubblewrap writes its child's process id.
        seccomp: The file descriptor of the filter.
        stdin: The file descriptor of the program's standard input.
        files: The file descriptors of the files in `/box`, the program among them.
        content_bytes: The total size of these files.
    """
    become: Sequence[str] = (*prlimit(tools, limits), "/bin/sh", "-c", _START, "sh")
    if uid is None:
        # limits process 1, which starts before the limits are set inside
        before: Sequence[str] = (tools.prlimit, f"--as={limits.memory_bytes}", "--core=0", "--")
        namespaces: Sequence[str] = _NAMESPACES_AS_USER
    else:
        before, namespaces = (), _NAMESPACES_AS_ROOT
        become = (*_setpriv_command(tools, uid), *become)
    return (
        *(*before, tools.bwrap, *namespaces, *_LIFE, *_environment_options(), *_SYSTEM),
        *_folder_options(limits, content_bytes=content_bytes),
        *_interpreter_options(tools),
        *_read_only(stdin, _INPUT),
        *(part for name, file in files.items() for part in _read_only(file, f"/box/{name}")),
        *(*_SEAL, "--info-fd", str(info), "--seccomp", str(seccomp), "--", *become),
        *(tools.python, "-s", "-P", "-B", f"/box/{PROGRAM_NAME}"),
    )


def prlimit(tools: SandboxTools, limits: Limits) -> Sequence[str]:
    """The part of a command that sets soft and hard limits and runs what follows."""
    return (
        tools.prlimit,
        f"--as={limits.memory_bytes}",
        f"--cpu={limits.cpu_seconds}:{limits.cpu_seconds + 1}",
        f"--fsize={limits.file_bytes}",
        f"--nproc={limits.threads}",
        f"--stack={min(limits.stack_bytes, limits.memory_bytes)}",
        *("--nofile=128", "--core=0", "--rtprio=0", "--sigpending=256", "--"),
    )


def _setpriv_command(tools: SandboxTools, uid: int) -> Sequence[str]:
    return (
        *(tools.setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"),
    )


def _environment_options() -> Iterator[str]:
    for name, value in _ENVIRONMENT.items():
        yield from ("--setenv", name, value)


def _folder_options(limits: Limits, *, content_bytes: int) -> Iterator[str]:
    sizes = (limits.file_bytes + content_bytes, limits.file_bytes, _SHM_BYTES)
    for folder, size in zip(FOLDERS, sizes, strict=True):
        yield from ("--perms", "1777", "--size", str(size), "--tmpfs", folder)


def _interpreter_options(tools: SandboxTools) -> Iterator[str]:
    """Mounts the interpreter at its path outside, since it may find its library by that path."""
    prefix = posixpath.normpath(tools.python_prefix)
    if prefix == "/usr" or prefix.startswith("/usr/"):
        return
    parents = prefix.split("/")[1:-1]
    for depth in range(len(parents)):
        yield from ("--perms", "0755", "--dir", "/" + "/".join(parents[: depth + 1]))
    yield from ("--ro-bind", prefix, prefix)


def _read_only(descriptor: int, path: str) -> Sequence[str]:
    return ("--perms", "0444", "--file", str(descriptor), path)


Stopped = Literal["timeout", "output"]

STDERR_BYTES = 1 << 16
MOST_FILES = 10_000
"""Most files in the writable folders: even an empty one takes a kilobyte that no limit counts."""
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_CHUNK_BYTES = 1 << 16


@final
@dataclass(frozen=True, kw_only=True)
class ProcessOutput:
    """The output of a run, and why it ended.

    Attributes:
        stopped: Why it was stopped; None where it ended by itself.
        stdout: The beginning of standard output, up to the limit.
        stderr: The end of standard error, up to 64 KiB.
        truncated: Whether a part of either is missing.
        seconds: The wall-clock time.
    """

    stopped: Stopped | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    seconds: float


class _Sink:
    """Keeps the beginning or the end of a stream, and its total length."""

    def __init__(self, *, most: int, last: bool) -> None:
        self.data = bytearray()
        self.total = 0
        self._most = most
        self._last = last

    def take(self, data: bytes) -> None:
        self.total += len(data)
        if self._last:
            self.data += data
            del self.data[: -self._most]
        else:
            self.data += data[: self._most - len(self.data)]

    @property
    def truncated(self) -> bool:
        return self.total > len(self.data)


def watch_process(
    *,
    stdout: int,
    stderr: int,
    end: int,
    folders: Sequence[int],
    stop: Callable[[], None],
    limits: Limits,
) -> ProcessOutput:
    """Read a run's output until it is over, and stop it at its limits.

    Args:
        stdout: The file descriptor of its standard output.
        stderr: The file descriptor of its standard error.
        end: A descriptor that becomes readable once all its processes are gone.
        folders: Descriptors of its writable folders.
        stop: Kills all its processes.
        limits: The limits on its output and on its time from now on.

    Raises:
        SandboxError: It didn't end after it was killed.
    """
    sinks = {
        stdout: _Sink(most=limits.output_bytes, last=False),
        stderr: _Sink(most=min(limits.output_bytes, STDERR_BYTES), last=True),
    }
    stopped: Stopped | None = None
    begin = time.monotonic()
    deadline = begin + limits.wall_seconds
    with selectors.DefaultSelector() as selector:
        for descriptor in (*sinks, end):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = max(0.0, deadline - time.monotonic())
            _read_some(selector, sinks, seconds=min(left, _LOOK_SECONDS))
            late = time.monotonic() >= deadline
            if stopped and late:
                raise SandboxError("a program in the sandbox can't be killed; check the machine")
            much = any(sink.total > limits.output_bytes for sink in sinks.values())
            much |= not stopped and sum(map(_files_in, folders)) > MOST_FILES
            if (late or much) and not stopped:
                stopped, deadline = (
                    "timeout" if late else "output",
                    time.monotonic() + _STOP_SECONDS,
                )
                stop()
    return ProcessOutput(
        stopped=stopped,
        stdout=bytes(sinks[stdout].data),
        stderr=bytes(sinks[stderr].data),
        truncated=any(sink.truncated for sink in sinks.values()),
        seconds=time.monotonic() - begin,
    )


def _files_in(folder: int) -> int:
    """The number of files in a folder's file system."""
    filesystem = os.statvfs(folder)
    return filesystem.f_files - filesystem.f_ffree


def _read_some(
    selector: selectors.BaseSelector, sinks: dict[int, _Sink], *, seconds: float
) -> None:
    """Wait until something can be read, and read it."""
    for key, _ in selector.select(seconds):
        data = os.read(key.fd, _CHUNK_BYTES) if key.fd in sinks else b""
        if data:
            sinks[key.fd].take(data)
        else:
            selector.unregister(key.fd)


_START_SECONDS = 60.0
_END_SECONDS = 30.0


@final
@dataclass(frozen=True)
class SandboxProcess:
    """The processes of a run that waits for its start, or has started.

    Attributes:
        process: bubblewrap.
        inside: A pidfd of the first process inside; it becomes readable once every process inside
            is gone.
        folders: Descriptors of the writable folders.
    """

    process: subprocess.Popen[bytes]
    inside: int
    folders: tuple[int, ...]

    def start(self, limits: Limits) -> ProcessOutput:
        """Start the program, and watch it to its end.

        Raises:
            SandboxError: It can't be killed.
        """
        with stream_of(self.process.stdin) as stdin:
            stdin.write(b"go\n")
        return watch_process(
            stdout=stream_of(self.process.stdout).fileno(),
            stderr=stream_of(self.process.stderr).fileno(),
            end=self.inside,
            folders=self.folders,
            stop=self.stop,
            limits=limits,
        )

    def stop(self) -> None:
        """Kill the first process inside; the kernel then kills every other process there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.inside, signal.SIGKILL)


@contextmanager
def sandbox_process(
    command: Callable[[int], Sequence[str]], *, descriptors: Sequence[int]
) -> Iterator[SandboxProcess]:
    """Yield a run that waits for its start; afterwards none of its processes is left.

    If the calling thread is killed, the processes inside end, too: before the start because they
    wait for input that can't come any more, and after it because bubblewrap kills them.

    Args:
        command: Makes the command line, given the descriptor for the child's process id.
        descriptors: The descriptors that the command reads.

    Raises:
        SandboxError: It couldn't be started.
        OSError: The system lacks the resources.
    """
    with ExitStack() as stack:
        info, written = os.pipe()
        stack.callback(os.close, info)
        try:
            process = _start_process(command(written), (*descriptors, written))
        finally:
            os.close(written)
        stack.callback(_end_process, process)
        _await_ready(process)
        pid = _first_inside(info)
        inside = os.pidfd_open(pid)
        stack.callback(os.close, inside)
        folders = tuple(os.open(f"/proc/{pid}/root{name}", os.O_PATH) for name in FOLDERS)
        for folder in folders:
            stack.callback(os.close, folder)
        child = SandboxProcess(process, inside, folders)
        try:
            yield child
        finally:
            child.stop()
            _is_readable(inside, seconds=_END_SECONDS)


def stream_of(stream: IO[bytes] | None) -> IO[bytes]:
    """A stream of a process that was started with pipes."""
    if stream is None:
        raise SandboxError("the sandbox was started without its streams")
    return stream


def _start_process(command: Sequence[str], passed: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=passed,
        bufsize=0,
        cwd="/",
        env={},
        start_new_session=True,  # keeps the terminal's interrupts away from it
    )


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End bubblewrap, which has ended already or still waits for the start."""
    for stream in (process.stdin, process.stdout, process.stderr):
        stream_of(stream).close()
    process.kill()
    process.wait()


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    out, received = stream_of(process.stdout).fileno(), b""
    while len(received) < len(READY):
        if not _is_readable(out, seconds=deadline - time.monotonic()):
            raise SandboxError(f"the sandbox didn't start within {_START_SECONDS:.0f} s; try again")
        data = os.read(out, len(READY) - len(received))
        if not data:
            break
        received += data
    if received != READY:
        raise SandboxError(f"the sandbox couldn't be started: {_last_complaint(process)}")


def _last_complaint(process: subprocess.Popen[bytes]) -> str:
    """The last line that a tool wrote before it failed; the program hasn't run yet."""
    text = _read_available(stream_of(process.stderr).fileno()).decode(errors="replace")
    return text.strip().rpartition("\n")[2] or "it ended without a word"


def _first_inside(info: int) -> int:
    match = re.search(rb'"child-pid": *(\d+)', _read_available(info))
    if match is None:
        raise SandboxError("the sandbox couldn't be started: bubblewrap didn't name its child")
    return int(match[1])


def _read_available(descriptor: int) -> bytes:
    """The available data, after at most a second."""
    return os.read(descriptor, _CHUNK_BYTES) if _is_readable(descriptor, seconds=1) else b""


def _is_readable(descriptor: int, *, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
