"""Programs that try to get out. Each prints `harm` where it succeeds, and `held` where it doesn't.

They read what to try from standard input, as JSON; `outside` makes what they try to reach. The
controlled ones are also run without any sandbox, where they must print `harm`: one that could never
succeed would show nothing.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BEGIN = """
import ctypes, json, mmap, os, resource, signal, socket, sys
given = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "call")
def attempt():
"""
END = """
try:
    print("held: nothing came of it" if attempt() is False else "harm")
except OSError as error:
    print("held:", error.strerror)
"""


@dataclass(frozen=True)
class Escape:
    name: str
    body: str
    control: Literal["everybody", "root", "nobody"] = "everybody"
    ends: tuple[str, ...] = ("ok",)

    @property
    def program(self) -> str:
        lines = "\n".join(f"    {line}" for line in self.body.strip().splitlines())
        return BEGIN + lines + END


ESCAPES = [
    Escape(
        "connects over TCP",
        'socket.create_connection(("127.0.0.1", given["port"]), timeout=2)',
    ),
    Escape(
        "sends over UDP",
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        's.sendto(b"x", ("127.0.0.1", given["port"]))',
    ),
    Escape("looks at the network's interfaces", "return len(socket.if_nameindex()) > 1", "nobody"),
    Escape(
        "connects to an abstract address",
        'socket.socket(socket.AF_UNIX).connect("\\0" + given["abstract"])',
    ),
    Escape(
        "connects to a socket's file",
        'socket.socket(socket.AF_UNIX).connect(given["socket"])',
    ),
    Escape("reads a file", 'open(given["file"]).read()'),
    Escape("writes to a file", 'open(given["written"], "a").write("x")'),
    Escape("reads the accounts", 'open("/etc/passwd").read()'),
    Escape("lists the homes", 'os.listdir("/home")'),
    Escape("lists the project", 'os.listdir(given["project"])'),
    Escape("lists the devices of the kernel", 'os.listdir("/sys/class")'),
    Escape("opens the disk", 'os.open("/dev/vda", os.O_RDONLY)', "nobody"),
    Escape("makes a device", 'os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0))', "nobody"),
    Escape("looks into the first process", 'os.listdir("/proc/1/fd")', "root"),
    Escape("writes to the first process", 'open("/proc/1/mem", "r+b")', "nobody"),
    Escape("sees another process", 'os.listdir("/proc/" + str(given["process"]))'),
    Escape("signals another process", 'os.kill(given["process"], 0)'),
    Escape("kills all that it can", "os.kill(-1, signal.SIGKILL)", "nobody", ("ok", "killed")),
    Escape("kills the first process", "os.kill(1, 9)\nreturn False", "nobody"),
    Escape("is traced", "call({'x86_64': 101, 'aarch64': 117}[os.uname().machine], 0, 0, 0, 0)"),
    Escape("sets a sysctl", 'os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)', "root"),
    Escape("asks for the magic key", 'os.open("/proc/sysrq-trigger", os.O_WRONLY)', "nobody"),
    Escape("mounts", "call({'x86_64': 165, 'aarch64': 40}[os.uname().machine], b'x', b'/tmp', "
        "b'tmpfs', 0, 0)", "nobody"),
    Escape("makes a user namespace", "call({'x86_64': 272, 'aarch64': 97}[os.uname().machine], "
        "0x10000000)"),
    Escape("opens an io_uring", "call(425, 1, ctypes.create_string_buffer(120))"),
    Escape("makes a process", "if os.fork() == 0: os._exit(0)\nos.wait()"),
    Escape(
        "starts a program beside itself",
        'import subprocess\nsubprocess.run(["/usr/bin/true"], check=True)',
    ),
    Escape(
        "has the kernel keep an attribute",
        "number = {'x86_64': 190, 'aarch64': 7}[os.uname().machine]\n"
        "try: call(number, -1, b'user.x', b'x', 1, 0)\n"
        "except OSError as error: return error.errno != 1",  # EPERM: it isn't even looked at
    ),
    Escape(
        "fills a folder's attributes",
        "number = {'x86_64': 188, 'aarch64': 5}[os.uname().machine]\n"
        "try: call(number, b'/tmp', b'user.x', b'x', 1, 0)\n"
        "except OSError as error: return error.errno != 1",
    ),
    Escape("watches files", "call({'x86_64': 294, 'aarch64': 26}[os.uname().machine], 0)"),
    Escape("makes a file in memory", 'os.memfd_create("x")'),
    Escape(
        "makes a segment of shared memory",
        "made = libc.shmget(0, 4096, 0o1600)\n"
        "return made >= 0 and libc.shmctl(made, 0, None) == 0",
    ),
    Escape(
        "makes a buffer of the kernel larger",
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)",
    ),
    Escape(
        "locks a byte of a file",
        "import fcntl\nfcntl.lockf(os.open('/tmp', os.O_TMPFILE | os.O_RDWR), fcntl.LOCK_EX, 1)",
    ),
    Escape(
        "locks a byte of an open file",
        "import fcntl, struct\nplace = os.open('/tmp', os.O_TMPFILE | os.O_RDWR)\n"
        "fcntl.fcntl(place, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 1, 1, 0))",
    ),
    Escape(
        "makes a pipe larger",
        "import fcntl\nfcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)",
    ),
    Escape(
        "makes a timer of the kernel",
        "number = {'x86_64': 222, 'aarch64': 107}[os.uname().machine]\n"
        "call(number, 1, None, ctypes.create_string_buffer(8))",
    ),
    Escape("becomes root", "os.setuid(0)", "root"),
    Escape(
        "raises a limit",
        "try: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "except ValueError: return False",
        "nobody",
    ),
    Escape("runs a program with more rights", 'os.execv("/usr/bin/su", ["su", "-c", "echo harm"])',
        "nobody", ("error",)),
    Escape("has descriptors of its maker", "return len(os.listdir('/proc/self/fd')) > 4", "nobody"),
    Escape("changes its own program", 'open("/box/prog.py", "w")', "nobody"),
]  # fmt: skip

MACHINE_CODE = (
    BEGIN
    + """
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)() != os.getpid()
print("harm" if attempt() is not True else "held")
"""
)
"""A call of 32-bit x86 from a 64-bit process: other numbers, which a filter could be fooled by."""

X32_CALL = (
    BEGIN
    + """
    call(0x40000000 + 39)
try:
    attempt()
except OSError:
    pass
print("went on")
"""
)


@contextmanager
def outside(folder: Path) -> Iterator[dict[str, Any]]:
    """The objects that programs try to reach; everybody outside the sandbox can."""
    for path in (folder / "file", folder / "written"):
        path.write_text("untouched")
        path.chmod(0o666)
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
    ):
        tcp.bind(("127.0.0.1", 0))
        abstract.bind("")
        named.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        for listener in (tcp, abstract, named):
            listener.listen(100)
        yield {
            "port": tcp.getsockname()[1],
            "abstract": abstract.getsockname()[1:].decode(),
            "socket": str(folder / "socket"),
            "file": str(folder / "file"),
            "written": str(folder / "written"),
            "project": str(Path(__file__).parent),
            "process": os.getpid(),
        }
