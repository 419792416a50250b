"""Runs a filter of system calls as the kernel would."""

import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003}
ALLOW = 0x7FFF0000
KILL = 0x80000000


def verdict(program: bytes, number: int, *arguments: int, architecture: str) -> int:
    """What the filter returns for a call: ALLOW, KILL, or the number of an error."""
    data = struct.pack("=IIQ", number, ARCHITECTURES[architecture], 0)
    data += struct.pack("=6Q", *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", program))
    at, loaded = 0, 0
    while True:
        operation, if_true, if_false, operand = instructions[at]
        at += 1
        if operation == 0x20:
            loaded = struct.unpack_from("=I", data, operand)[0]
        elif operation == 0x06:
            return operand if operand in (ALLOW, KILL) else operand & 0xFFFF
        else:
            met = {
                0x15: loaded == operand,
                0x35: loaded >= operand,
                0x45: bool(loaded & operand),
            }[operation]
            at += if_true if met else if_false
