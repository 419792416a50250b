"""The filter on system calls: a small program of classic BPF, in the form that `seccomp(2)` takes.

It allows the calls that a computation needs, and refuses those that could reach outside or use
memory that no limit counts. Threads are allowed and processes aren't. Answers to programming
problems don't need processes (LiveCodeBench's runner disables `os.fork` and `subprocess`, too).
With one process the limit on its address space limits all its memory.

The numbers of system calls are from the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and
`include/uapi/asm-generic/unistd.h`, which aarch64 uses. From 424 on the numbers are the same.
"""

import errno
import struct
from collections.abc import Iterator, Mapping
from typing import Literal

Machine = Literal["x86_64", "aarch64"]
MACHINES: tuple[Machine, ...] = ("x86_64", "aarch64")

Numbers = tuple[int | None, int | None]
"""The number of a call on x86_64 and on aarch64; None where the machine has no such call."""

SOCKET: Numbers = (41, 198)
CLONE: Numbers = (56, 220)
FCNTL: Numbers = (72, 25)
CLONE3 = 435
FIRST_SHARED = 424
"""Calls from this number on are refused as unknown, except for those in `HARMLESS_SHARED`."""

REFUSED: Mapping[str, Mapping[str, Numbers]] = {
    "other processes": {
        "fork": (57, None),
        "vfork": (58, None),
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "kcmp": (312, 272),
    },
    "namespaces and mounts": {
        "unshare": (272, 97),
        "setns": (308, 268),
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "name_to_handle_at": (303, 264),
        "open_by_handle_at": (304, 265),
    },
    "parts of the kernel that a computation doesn't need and that have had vulnerabilities": {
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "keyctl": (250, 219),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "fanotify_init": (300, 262),
        "seccomp": (317, 277),
        "personality": (135, 92),
        "modify_ldt": (154, None),
        "vmsplice": (278, 75),
        "lookup_dcookie": (212, 18),
        "_sysctl": (156, None),
        "uselib": (134, None),
        "nfsservctl": (180, 42),
    },
    "memory that no limit on the address space counts": {
        "memfd_create": (319, 279),
        "shmget": (29, 194),
        "shmctl": (31, 195),
        "shmat": (30, 196),
        "semget": (64, 190),
        "msgget": (68, 186),
        "mq_open": (240, 180),
        "setsockopt": (54, 208),  # buffers of megabytes, for each of its sockets
        "setxattr": (188, 5),  # attributes of a file in memory: any number, 64 KiB each
        "lsetxattr": (189, 6),
        "fsetxattr": (190, 7),
        "inotify_init": (253, None),  # a million watches, a kilobyte each
        "inotify_init1": (294, 26),
        "inotify_add_watch": (254, 27),
        "io_setup": (206, 0),  # rings that all users share
        "timer_create": (222, 107),
    },
    "the machine itself": {
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "init_module": (175, 105),
        "finit_module": (313, 273),
        "delete_module": (176, 106),
        "reboot": (169, 142),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "acct": (163, 89),
        "quotactl": (179, 60),
        "syslog": (103, 116),
        "vhangup": (153, 58),
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
        "settimeofday": (164, 170),
        "clock_settime": (227, 112),
        "adjtimex": (159, 171),
        "clock_adjtime": (305, 266),
        "iopl": (172, None),
        "ioperm": (173, None),
    },
}
"""Calls that fail with "operation not permitted", by what they would reach."""

REFUSED_COMMANDS: Mapping[str, int] = {
    "F_SETLK": 6,  # locks of single bytes, in any number
    "F_SETLKW": 7,
    "F_OFD_SETLK": 37,
    "F_OFD_SETLKW": 38,
    "F_SETLEASE": 1024,
    "F_NOTIFY": 1026,
    "F_SETPIPE_SZ": 1031,  # a megabyte, for each of its pipes
}
"""Commands of `fcntl` that fail likewise, since no limit counts the kernel's memory for them."""

HARMLESS_SHARED: Mapping[str, int] = {
    "close_range": 436,
    "openat2": 437,
    "faccessat2": 439,
    "epoll_pwait2": 441,
    "futex_waitv": 449,
    "fchmodat2": 452,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
}
"""Newer calls that are allowed; io_uring, pidfds, new mount calls and future calls aren't."""


def call_number(numbers: Numbers, *, machine: Machine) -> int | None:
    """The number of a call on a machine; None where it has no such call."""
    return numbers[0] if machine == "x86_64" else numbers[1]


def refused_numbers(*, machine: Machine) -> Iterator[int]:
    """The numbers of the calls that are always refused."""
    for calls in REFUSED.values():
        for numbers in calls.values():
            number = call_number(numbers, machine=machine)
            if number is not None:
                yield number


_Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand: the kernel's `struct sock_filter`."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_FAIL = 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data
_SECOND_ARGUMENT_AT = 24
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_AF_UNIX = 1
_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""


def filter_program(*, machine: Machine) -> bytes:
    """The filter for a machine, as the array of `struct sock_filter` that bubblewrap reads.

    Calls of another architecture (32-bit calls on a 64-bit machine) and of x32 end the process.
    """
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _make_program(machine))


def _make_program(machine: Machine) -> Iterator[_Instruction]:
    yield _LOAD, 0, 0, _ARCHITECTURE_AT
    yield _EQUAL, 1, 0, _ARCHITECTURES[machine]
    yield _RETURN, 0, 0, _KILL_PROCESS
    yield _LOAD, 0, 0, _NUMBER_AT
    yield _AT_LEAST, 0, 1, _X32_BIT
    yield _RETURN, 0, 0, _KILL_PROCESS
    yield from _filter_shared_calls()
    for refused in sorted(refused_numbers(machine=machine)):
        yield _EQUAL, 0, 1, refused
        yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield from _filter_commands(machine)
    yield from _filter_sockets(machine)
    yield from _filter_threads(machine)
    yield _RETURN, 0, 0, _ALLOW


def _filter_shared_calls() -> Iterator[_Instruction]:
    """Allows a few calls from 424 on; `clone3` isn't one, since its flags can't be inspected."""
    harmless_calls = sorted(set(HARMLESS_SHARED.values()) - {CLONE3})
    yield _AT_LEAST, 0, 2 * len(harmless_calls) + 1, FIRST_SHARED
    for harmless in harmless_calls:
        yield _EQUAL, 0, 1, harmless
        yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _FAIL | errno.ENOSYS


def _filter_commands(machine: Machine) -> Iterator[_Instruction]:
    """Allows `fcntl` except for some commands; like the kernel it checks 32 bits of a command."""
    refused = sorted(REFUSED_COMMANDS.values())
    yield _EQUAL, 0, 2 * len(refused) + 2, call_number(FCNTL, machine=machine) or 0
    yield _LOAD, 0, 0, _SECOND_ARGUMENT_AT
    for command in refused:
        yield _EQUAL, 0, 1, command
        yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield _RETURN, 0, 0, _ALLOW


def _filter_sockets(machine: Machine) -> Iterator[_Instruction]:
    """Allows Unix sockets alone, which the network namespace keeps inside."""
    yield _EQUAL, 0, 4, call_number(SOCKET, machine=machine) or 0
    yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
    yield _EQUAL, 1, 0, _AF_UNIX
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield _RETURN, 0, 0, _ALLOW


def _filter_threads(machine: Machine) -> Iterator[_Instruction]:
    """Allows `clone` for threads, and not for processes or namespaces."""
    yield _EQUAL, 0, 4, call_number(CLONE, machine=machine) or 0
    yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
    yield _ANY_BIT, 1, 0, _CLONE_NEW
    yield _ANY_BIT, 1, 0, _CLONE_THREAD
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
