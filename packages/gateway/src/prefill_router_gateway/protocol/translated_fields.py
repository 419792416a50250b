"""Reads the fields of a request to translate; what a chat can't say is refused by its name."""

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, final

Fields = Mapping[str, Any]


@final
class UntranslatableError(Exception):
    """A request has something that a chat can't say; the message is its name."""


def refuse(where: str, what: object) -> NoReturn:
    """Refuse a part of a request.

    Args:
        where: Its place.
        what: What it has there; empty where the place says it.

    Raises:
        UntranslatableError: Always.
    """
    raise UntranslatableError(f"{where}: {str(what)[:64]}" if what else where)


def read_object(value: object, where: str) -> Fields:
    """The value, which must be an object."""
    return value if isinstance(value, Mapping) else refuse(where, "")


def read_list(value: object, where: str) -> list[Any]:
    """The value, which must be a list."""
    return value if isinstance(value, list) else refuse(where, "")


def read_text(value: object, where: str) -> str:
    """The value, which must be a text."""
    return value if isinstance(value, str) else refuse(where, "")


def drop_volatile_line(text: str, volatile: tuple[str, ...]) -> str:
    """A system text without a first line that changes with each request: a cache of it holds.

    Args:
        text: The text.
        volatile: How such a line begins.
    """
    return text.partition("\n")[2].lstrip("\n") if text.startswith(volatile) else text


def check_fields(value: Fields, where: str, names: frozenset[str]) -> None:
    """Refuse fields of other names, unless they are null.

    Args:
        value: The object.
        where: Its place; empty for the whole request.
        names: The names that are read, or that change no answer.
    """
    for name, content in value.items():
        if name not in names and content is not None:
            refuse(f"{where}.{name}" if where else name[:64], "")


def select_fields(value: Fields, names: Iterable[str]) -> dict[str, Any]:
    """Those of the fields that are there and not null."""
    return {name: value[name] for name in names if value.get(name) is not None}


def select_names(hints: Mapping[str, bool]) -> tuple[str, ...]:
    """The names of the hints that a request has."""
    return tuple(name for name, is_there in hints.items() if is_there)
