"""Command lines that ask for what can't be, whatever the files hold that they name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from prefill_router.errors import ConfigError

Choice = TypeVar("Choice", bound=str)


class UsageError(ConfigError):
    """The command line itself is wrong; the exit code is 2."""


@contextmanager
def reading_words() -> Iterator[None]:
    """What doesn't fit in here is the command line's: nothing else has been looked at yet."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(*error.told) from None


def check_suffix(option: str, place: Path, known: Sequence[str]) -> None:
    """Check that a file's name says what will be in it.

    Raises:
        UsageError: It says something else.
    """
    if place.suffix.lower() not in known:
        raise UsageError(f"{option} is {place}; name a file such as {place.stem}{known[0]}")


def one_of(option: str, text: str, choices: Sequence[Choice]) -> Choice:
    """The choice of this name.

    Raises:
        UsageError: There is none.
    """
    for choice in choices:
        if choice == text:
            return choice
    raise UsageError(f"{option} is {text!r}; it must be one of {', '.join(choices)}")
