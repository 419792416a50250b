"""Numbers of the system calls that the filter knows, on the machines that it knows.

Source: the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and
`include/uapi/asm-generic/unistd.h`, which aarch64 uses. From 424 on the numbers are the same.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

Machine = Literal["x86_64", "aarch64"]
MACHINES: tuple[Machine, ...] = ("x86_64", "aarch64")

Numbers = tuple[int | None, int | None]
"""On x86_64 and on aarch64; None where the machine has no such call."""

SOCKET: Numbers = (41, 198)
CLONE: Numbers = (56, 220)
FCNTL: Numbers = (72, 25)
CLONE3 = 435
FIRST_SHARED = 424
"""From here on a call is refused as unknown, unless it stands in `HARMLESS_SHARED`."""

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
    "parts of the kernel that a sum has no need of, and in which mistakes were found": {
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
        "setxattr": (188, 5),  # attributes of a file in memory: 64 KiB each, as many as it likes
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
"""Calls that end with "operation not permitted", by what they would reach."""

REFUSED_COMMANDS: Mapping[str, int] = {
    "F_SETLK": 6,  # locks of single bytes: as many as there is time for
    "F_SETLKW": 7,
    "F_OFD_SETLK": 37,
    "F_OFD_SETLKW": 38,
    "F_SETLEASE": 1024,
    "F_NOTIFY": 1026,
    "F_SETPIPE_SZ": 1031,  # a megabyte, for each of its pipes
}
"""Commands of `fcntl` that end likewise, since no limit counts what they have the kernel keep."""

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
"""Newer calls that pass; io_uring, pidfds, the new mount calls and those yet to come don't."""


def number(numbers: Numbers, *, machine: Machine) -> int | None:
    """The number on a machine; None where it has no such call."""
    return numbers[0] if machine == "x86_64" else numbers[1]


def refused_numbers(*, machine: Machine) -> Iterator[int]:
    """The numbers of the calls that are refused outright."""
    for calls in REFUSED.values():
        for numbers in calls.values():
            found = number(numbers, machine=machine)
            if found is not None:
                yield found
