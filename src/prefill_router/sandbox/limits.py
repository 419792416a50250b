"""What a program may use, and what came of it."""

from dataclasses import dataclass, fields
from typing import Literal, final

from prefill_router.errors import ConfigError

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]
"""How a program ended.

- `ok`: by itself, with exit code 0.
- `error`: by itself, with another exit code.
- `timeout`: it used up its CPU time or its wall time.
- `memory`: by itself, saying that no memory was left.
- `output`: it wrote more than it may, or made more files.
- `killed`: by a signal.
"""

MIB = 1 << 20


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run may use.

    Attributes:
        cpu_seconds: CPU time, of all threads together.
        wall_seconds: Time from the program's start to its end.
        memory_bytes: Address space. A program has one process, so this bounds its memory too.
        output_bytes: What may be written to standard output, and to standard error.
        file_bytes: One file, and all files in each of the two folders that can be written to.
        threads: Threads at once, the first one included.
        stack_bytes: The stack of the first thread; the stacks of others are as large by default.
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
    """What came of one run.

    All of it is the program's to choose: one that wants to can end with any exit code, any output
    and, but for being stopped, any status. So a verdict is made outside, from the output, by what
    the program was never shown.

    Attributes:
        status: How the program ended.
        exit_code: The exit code, 128 plus the signal where one ended it; None where it was stopped.
        stdout: What it wrote, up to the limit.
        stderr: The last part of what it wrote to standard error, up to 64 KiB.
        seconds: Wall time from the program's start to its end.
        output_truncated: Whether some of its output is missing here.
    """

    status: Status
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    output_truncated: bool
