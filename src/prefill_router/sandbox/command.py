"""The command line of one run.

Two forms, for root and for everybody else, since each was found to need its own. As root,
bubblewrap changes the namespaces with root's own rights, and the program gets a user id that
nobody else has and no capability; user namespaces are left out, because a root that is mapped to
another id is root still where the kernel looks at ids (`/proc/sys` could be written to, and the
limit on processes didn't hold). An ordinary user has user namespaces and nothing else.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from prefill_router.sandbox.limits import MIB, Limits
from prefill_router.sandbox.tools import Tools

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
    "PYTHONHASHSEED": "0",  # the same program on the same input does the same, run after run
    "OMP_NUM_THREADS": "1",
}
_SYSTEM = (
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"),
    *("--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
    *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
    # Process 1 is bubblewrap's. An ordinary user has the same id as it, so could write to it.
    *("--perms", "0000", "--size", "4096", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1"),
    *("--dev", "/dev"),
)
_SEAL = ("--chdir", "/box", "--remount-ro", "/dev", "--remount-ro", "/")
"""/dev too: it is a file system in memory, has no size, and belongs to an ordinary user."""

FOLDERS = ("/box", "/tmp", "/dev/shm")
"""What a program may write to."""

_SHM_BYTES = 16 * MIB
PROGRAM_NAME = "prog.py"
_INPUT = "/input"
READY = b"ready\n"

_START = f"""{{ echo 1000 >/proc/self/oom_score_adj; }} 2>/dev/null
echo {READY.decode().strip()}
read -r go && exec "$@" <{_INPUT}"""
"""Says that all is in place, waits for the word, and becomes the program.

Should whoever started it be gone, it ends. The program is the first that the kernel ends when the
machine has no memory left.
"""


def command(
    tools: Tools,
    limits: Limits,
    *,
    uid: int | None,
    info: int,
    seccomp: int,
    stdin: int,
    files: Mapping[str, int],
    content_bytes: int,
) -> tuple[str, ...]:
    """The command that runs a program once it is told to on its standard input.

    Args:
        tools: What it is built from.
        limits: What the program may use.
        uid: The user to become, where root starts it; None for an ordinary user.
        info: The descriptor that bubblewrap tells its child's process id on.
        seccomp: The descriptor of the filter.
        stdin: The descriptor of what the program shall read.
        files: The descriptors of the files in `/box`, the program among them.
        content_bytes: The size of all these files.
    """
    become: Sequence[str] = (*prlimit(tools, limits), "/bin/sh", "-c", _START, "sh")
    if uid is None:
        # For process 1, which is started before the limits are set inside.
        before: Sequence[str] = (tools.prlimit, f"--as={limits.memory_bytes}", "--core=0", "--")
        namespaces: Sequence[str] = _NAMESPACES_AS_USER
    else:
        before, namespaces = (), _NAMESPACES_AS_ROOT
        become = (*_setpriv(tools, uid), *become)
    return (
        *(*before, tools.bwrap, *namespaces, *_LIFE, *_environment(), *_SYSTEM),
        *_folders(limits, content_bytes=content_bytes),
        *_interpreter(tools),
        *_read_only(stdin, _INPUT),
        *(part for name, file in files.items() for part in _read_only(file, f"/box/{name}")),
        *(*_SEAL, "--info-fd", str(info), "--seccomp", str(seccomp), "--", *become),
        *(tools.python, "-s", "-P", "-B", f"/box/{PROGRAM_NAME}"),
    )


def prlimit(tools: Tools, limits: Limits) -> Sequence[str]:
    """Sets the limits of a process, soft and hard, and runs what follows."""
    return (
        tools.prlimit,
        f"--as={limits.memory_bytes}",
        f"--cpu={limits.cpu_seconds}:{limits.cpu_seconds + 1}",
        f"--fsize={limits.file_bytes}",
        f"--nproc={limits.threads}",
        f"--stack={min(limits.stack_bytes, limits.memory_bytes)}",
        *("--nofile=128", "--core=0", "--rtprio=0", "--sigpending=256", "--"),
    )


def _setpriv(tools: Tools, uid: int) -> Sequence[str]:
    return (
        *(tools.setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"),
    )


def _environment() -> Iterator[str]:
    for name, value in _ENVIRONMENT.items():
        yield from ("--setenv", name, value)


def _folders(limits: Limits, *, content_bytes: int) -> Iterator[str]:
    sizes = (limits.file_bytes + content_bytes, limits.file_bytes, _SHM_BYTES)
    for folder, size in zip(FOLDERS, sizes, strict=True):
        yield from ("--perms", "1777", "--size", str(size), "--tmpfs", folder)


def _interpreter(tools: Tools) -> Iterator[str]:
    """The interpreter where it stands outside, since it may name its library by that path."""
    prefix = posixpath.normpath(tools.python_prefix)
    if prefix == "/usr" or prefix.startswith("/usr/"):
        return
    parents = prefix.split("/")[1:-1]
    for depth in range(len(parents)):
        yield from ("--perms", "0755", "--dir", "/" + "/".join(parents[: depth + 1]))
    yield from ("--ro-bind", prefix, prefix)


def _read_only(descriptor: int, path: str) -> Sequence[str]:
    return ("--perms", "0444", "--file", str(descriptor), path)
