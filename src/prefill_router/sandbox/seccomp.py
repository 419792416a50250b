"""The filter on system calls: a small program of classic BPF, as `seccomp(2)` wants it.

It lets pass what a program that computes needs, and refuses what could reach outside or use memory
that nothing counts. Creating processes is refused and creating threads isn't: the answers to
programming problems need none (the runner of LiveCodeBench takes `os.fork` and `subprocess` away
too), and with one process the limit on its address space is a limit on all its memory.
"""

import errno
import struct
from collections.abc import Iterator

from prefill_router.sandbox.syscalls import (
    CLONE,
    CLONE3,
    FCNTL,
    FIRST_SHARED,
    HARMLESS_SHARED,
    REFUSED_COMMANDS,
    SOCKET,
    Machine,
    number,
    refused_numbers,
)

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
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(machine))


def _program(machine: Machine) -> Iterator[_Instruction]:
    yield _LOAD, 0, 0, _ARCHITECTURE_AT
    yield _EQUAL, 1, 0, _ARCHITECTURES[machine]
    yield _RETURN, 0, 0, _KILL_PROCESS
    yield _LOAD, 0, 0, _NUMBER_AT
    yield _AT_LEAST, 0, 1, _X32_BIT
    yield _RETURN, 0, 0, _KILL_PROCESS
    yield from _shared_calls()
    for refused in sorted(refused_numbers(machine=machine)):
        yield _EQUAL, 0, 1, refused
        yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield from _commands(machine)
    yield from _sockets(machine)
    yield from _threads(machine)
    yield _RETURN, 0, 0, _ALLOW


def _shared_calls() -> Iterator[_Instruction]:
    """Of the calls from 424 on, a few; `clone3` as unknown too, since its flags can't be seen."""
    known = sorted(set(HARMLESS_SHARED.values()) - {CLONE3})
    yield _AT_LEAST, 0, 2 * len(known) + 1, FIRST_SHARED
    for harmless in known:
        yield _EQUAL, 0, 1, harmless
        yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _FAIL | errno.ENOSYS


def _commands(machine: Machine) -> Iterator[_Instruction]:
    """`fcntl` for what a program needs of it; the kernel too looks at the command's 32 bits."""
    refused = sorted(REFUSED_COMMANDS.values())
    yield _EQUAL, 0, 2 * len(refused) + 2, number(FCNTL, machine=machine) or 0
    yield _LOAD, 0, 0, _SECOND_ARGUMENT_AT
    for command in refused:
        yield _EQUAL, 0, 1, command
        yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield _RETURN, 0, 0, _ALLOW


def _sockets(machine: Machine) -> Iterator[_Instruction]:
    """Sockets between processes of this machine only, which the network namespace keeps inside."""
    yield _EQUAL, 0, 4, number(SOCKET, machine=machine) or 0
    yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
    yield _EQUAL, 1, 0, _AF_UNIX
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield _RETURN, 0, 0, _ALLOW


def _threads(machine: Machine) -> Iterator[_Instruction]:
    """`clone` makes threads, and neither processes nor namespaces."""
    yield _EQUAL, 0, 4, number(CLONE, machine=machine) or 0
    yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT
    yield _ANY_BIT, 1, 0, _CLONE_NEW
    yield _ANY_BIT, 1, 0, _CLONE_THREAD
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
