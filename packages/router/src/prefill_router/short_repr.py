"""How this package's objects are shown: one short line, and in notebooks a table."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from reprlib import Repr
from typing import Any, TypeVar

MOST_CHARACTERS = 300
Any_ = TypeVar("Any_", bound=type)
_TABLE = """<table><caption>{{ caption }}</caption>
<thead><tr>{% for cell in head %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>"""


class _ShortRepr(Repr):
    """Shows arrays by type and shape, nested objects by their type, and truncates the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring = 2, 40
        self.maxtuple = self.maxlist = self.maxset = self.maxfrozenset = self.maxdict = 3

    def repr_float(self, value: float, level: int) -> str:
        """A number rounded for reading."""
        del level
        return f"{value:.4g}"

    def repr_mappingproxy(self, value: Any, level: int) -> str:
        """The same as the mapping that it wraps."""
        return str(self.repr_dict(value, level))

    def repr_instance(self, value: Any, level: int) -> str:
        """Anything else: an array's shape, an enumeration's value, or the type's name."""
        if getattr(value, "shape", ()) and hasattr(value, "dtype"):
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, float):
            return self.repr_float(value, level)
        if value is None or isinstance(value, int | str | type):
            return repr(value)
        if hasattr(value, "dtype"):
            return str(value)
        return f"{type(value).__name__}(...)"


_SHORT = _ShortRepr()


def short_repr(cls: Any_) -> Any_:
    """A class decorator that makes the `repr` of a dataclass or pydantic model one short line.

    It is for people; different objects may have the same `repr`.
    """
    setattr(cls, "__repr__", one_line)  # noqa: B010  # mypy: no method is assigned to
    return cls


def one_line(self: Any) -> str:
    """The type and the fields, each truncated."""
    text = ", ".join(f"{name}={_SHORT.repr(getattr(self, name))}" for name in _list_names(self))
    line = " ".join(f"{type(self).__name__}({text})".split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 4]}...)"


def _list_names(value: Any) -> Iterable[str]:
    if is_dataclass(value):
        return [field.name for field in fields(value) if field.repr]
    return list(type(value).model_fields)


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table for notebooks; numbers are rounded for reading, NaN and None are shown as a dash."""
    from jinja2 import Environment

    cells = [[_format_cell(value) for value in row] for row in rows]
    return (
        Environment(autoescape=True)
        .from_string(_TABLE)
        .render(caption=caption, head=head, rows=cells)
    )


def _format_cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
