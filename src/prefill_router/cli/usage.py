"""Command lines that ask for what can't be, whatever the files hold that they name."""

from collections.abc import Sequence
from typing import TypeVar

from prefill_router.errors import ConfigError

Choice = TypeVar("Choice", bound=str)


class UsageError(ConfigError):
    """The command line itself is wrong; the exit code is 2."""


def one_of(option: str, text: str, choices: Sequence[Choice]) -> Choice:
    """The choice of this name.

    Raises:
        UsageError: There is none.
    """
    for choice in choices:
        if choice == text:
            return choice
    raise UsageError(f"{option} is {text!r}; it must be one of {', '.join(choices)}")
