"""The filter, for both machines, call by call."""

import errno
import fcntl
import re
import socket
from pathlib import Path

import pytest

from packages.router.tests.sandbox.bpf import ALLOW, KILL, verdict
from prefill_router.sandbox.seccomp import (
    CLONE,
    CLONE3,
    FCNTL,
    HARMLESS_SHARED,
    MACHINES,
    REFUSED,
    REFUSED_COMMANDS,
    SOCKET,
    Machine,
    call_number,
    filter_program,
    refused_numbers,
)

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
THREAD = 0x3D0F00  # what glibc starts threads with
SIGCHLD = 17
every_machine = pytest.mark.parametrize("machine", MACHINES)


def numbers_of_header(machine: Machine) -> dict[str, int]:
    if not HEADERS[machine].is_file():
        pytest.skip(f"the kernel's headers are not installed ({HEADERS[machine]})")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    return {name: int(value) for name, value in lines}


@every_machine
def test_numbers_are_the_kernel_s(machine: Machine) -> None:
    header = numbers_of_header(machine)
    named = {name: n for calls in REFUSED.values() for name, n in calls.items()}
    named |= {"fcntl": FCNTL, "socket": SOCKET, "clone": CLONE, "clone3": (CLONE3, CLONE3)}
    for name, numbers in named.items():
        assert header.get(name) == call_number(numbers, machine=machine), name
    for name, shared in HARMLESS_SHARED.items():
        assert header.get(name, shared) == shared, name


@every_machine
def test_every_call_has_its_verdict(machine: Machine) -> None:
    program = filter_program(machine=machine)
    refused = set(refused_numbers(machine=machine))
    special_calls = {call_number(SOCKET, machine=machine), call_number(CLONE, machine=machine)}
    for call in range(1000):
        got = verdict(program, call, architecture=machine)
        if call in special_calls:
            continue
        if call >= 424 and call not in HARMLESS_SHARED.values():
            assert got == errno.ENOSYS, call
        else:
            assert got == (errno.EPERM if call in refused else ALLOW), call


@every_machine
def test_commands_of_fcntl(machine: Machine) -> None:
    program, call = filter_program(machine=machine), call_number(FCNTL, machine=machine) or 0
    refused = {getattr(fcntl, name) for name in REFUSED_COMMANDS}
    assert refused == set(REFUSED_COMMANDS.values())
    for command in range(1100):
        expected = errno.EPERM if command in refused else ALLOW
        assert verdict(program, call, 3, command, architecture=machine) == expected, command
    high = 1 << 32 | fcntl.F_SETLK  # of which the kernel drops the upper half
    assert verdict(program, call, 3, high, architecture=machine) == errno.EPERM


@every_machine
def test_sockets_of_this_machine_alone(machine: Machine) -> None:
    program, call = filter_program(machine=machine), call_number(SOCKET, machine=machine) or 0
    for family in range(50):
        expected = ALLOW if family == socket.AF_UNIX else errno.EPERM
        assert verdict(program, call, family, architecture=machine) == expected


@every_machine
def test_threads_and_no_processes(machine: Machine) -> None:
    program, call = filter_program(machine=machine), call_number(CLONE, machine=machine) or 0
    assert verdict(program, call, THREAD, architecture=machine) == ALLOW
    assert verdict(program, call, SIGCHLD, architecture=machine) == errno.EPERM
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        got = verdict(program, call, THREAD | namespace, architecture=machine)
        assert got == errno.EPERM, hex(namespace)


@every_machine
def test_other_architectures_end_the_process(machine: Machine) -> None:
    program = filter_program(machine=machine)
    other = MACHINES[1 - MACHINES.index(machine)]
    for architecture in (other, "i386"):
        assert verdict(program, 0, architecture=architecture) == KILL
    for call in (0x40000000, 0x40000027, 0xFFFFFFFF):
        assert verdict(program, call, architecture=machine) == KILL


def test_the_filter_is_whole_instructions() -> None:
    for machine in MACHINES:
        program = filter_program(machine=machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096  # the most that the kernel takes
