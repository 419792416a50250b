"""The exit codes of all commands."""

from enum import IntEnum


class Code(IntEnum):
    """What the end of a command says to the program that called it; the guide has the same table.

    2 can be told from the command line alone, 1 takes a look at what it names.
    """

    DONE = 0, "done; `doctor`: the router is worth it"
    UNUSABLE = 1, "what the command line names can't be used: the last line says why"
    MALFORMED = (
        2,
        "the command line itself is wrong: a name, a number, options that exclude others",
    )
    NO_GUARANTEE = 3, "`keep`: no lam can be guaranteed"
    NO_BETTER = 4, "`doctor`: the router is not worth it"
    CANT_TELL = 5, "`doctor`: that can't be told"
    INTERRUPTED = 130, "interrupted; what was finished is kept"

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "Code":
        """A code and what it says."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code
