"""What a report is made of: text, tables and figures, whatever they are rendered to.

A part of a page is a paragraph (a string), a list of facts (a mapping), or one of the classes here.
Everything is plain text, which `pages` escapes; none of it is HTML.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from prefill_router.evaluation import PER, Better, Estimate, MetricEntry, Unit, interval, worded
from prefill_router.short_repr import short_repr

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table as TerminalTable

Sure = Literal["", "better", "worse"]
Rows = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""The rows of a CSV file, or its columns."""
BOLD = (
    "Bold: surely better than what it is held against, on the same queries (the interval of the "
    "difference excludes 0); in brackets: surely worse."
)
"""What bold and brackets mean in every table of every page."""
UNDERLINED = "Underlined: the best of its row, surely or by chance."
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}


@final
@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it says.
        note: Smaller, under it.
        hint: Shows when the pointer rests on it.
        held: How it does against what it is held against, see `BOLD`.
        best: Whether it is the best of its row, see `UNDERLINED`.
        words: Whether it is text to read, and no number.
        cited: Smaller, in italics, under the note: what somebody else found.
        folded: Text that shows when the cell is opened.
    """

    text: str
    note: str = ""
    hint: str = ""
    held: Sure = ""
    best: bool = False
    words: bool = False
    cited: tuple[str, ...] = ()
    folded: str = ""


Row = list[str | Cell]
"""A row of a table."""


def as_cell(content: str | Cell) -> Cell:
    """A cell of a table, also where it was given as its text."""
    return Cell(content) if isinstance(content, str) else content


@short_repr
@final
@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row heads it.

    Attributes:
        head: Heads of the columns.
        rows: The cells; a string is a cell of nothing else.
        note: Small text above it.
        otherwise: What is said where there are no rows.
        right_from: From this column on they stand to the right in a terminal.
        unbroken: Whether these are never broken into lines there.
    """

    kind: ClassVar[str] = "table"
    head: Sequence[str | Cell]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""
    otherwise: str = ""
    right_from: int | None = None
    unbroken: bool = False

    def for_terminal(self) -> "TerminalTable":
        """The same for a terminal."""
        # Here and not above: pages need no terminal.
        from rich.table import Table as TerminalTable

        made = TerminalTable(box=None, pad_edge=False, show_header=bool(self.head))
        for place, head in enumerate(self.head):
            right = self.right_from is not None and place >= self.right_from
            justify: Literal["left", "right"] = "right" if right else "left"
            made.add_column(as_cell(head).text, justify=justify, no_wrap=right and self.unbroken)
        for row in self.rows:
            made.add_row(*(as_cell(cell).text for cell in row))
        return made


@short_repr
@final
@dataclass(frozen=True, eq=False)
class ReportFigure:
    """A figure of a report.

    Attributes:
        name: Of its files.
        figure: It.
        rows: The data that it is drawn from.
        caption: What to see in it.
        label: What it is called where it can't be seen; its name if not given.
    """

    kind: ClassVar[str] = "figure"
    name: str
    figure: "Figure"
    rows: Rows
    caption: str
    label: str = ""


@final
@dataclass(frozen=True)
class Note:
    """A quieter paragraph."""

    kind: ClassVar[str] = "note"
    text: str


@short_repr
@final
@dataclass(frozen=True)
class Lines:
    """A list of sentences."""

    kind: ClassVar[str] = "lines"
    lines: Sequence[str]


@final
@dataclass(frozen=True)
class Code:
    """Text as it stands in a file."""

    kind: ClassVar[str] = "code"
    text: str


@short_repr
@final
@dataclass(frozen=True)
class Banner:
    """What the reader must see first: a verdict, with its word in front or without."""

    kind: ClassVar[str] = "banner"
    lines: Sequence[str]
    word: str = ""


@final
@dataclass(frozen=True)
class Cards:
    """A few numbers in large print: what each is called, its value, a note."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[tuple[str, str, str]]


@short_repr
@final
@dataclass(frozen=True)
class Checks:
    """What was checked: the class of each sign, the sign, a title, what was found."""

    kind: ClassVar[str] = "checks"
    checks: Sequence[tuple[str, str, str, str]]


@short_repr
@final
@dataclass(frozen=True)
class Folded:
    """Parts that show when they are opened, under a title."""

    kind: ClassVar[str] = "folded"
    title: str
    parts: "Sequence[Part]"


@short_repr
@final
@dataclass(frozen=True)
class Section:
    """A headed part."""

    kind: ClassVar[str] = "section"
    title: str
    parts: "Sequence[Part]"


Part = (
    str
    | Mapping[str, str]
    | Note
    | Table
    | ReportFigure
    | Lines
    | Code
    | Banner
    | Cards
    | Checks
    | Folded
    | Section
)


@short_repr
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Report:
    """Everything that a report says.

    Attributes:
        name: Of its JSON file, without the suffix.
        title: Heads the page.
        said: The result in sentences, which the terminal shows as well.
        known: What the reader must know: the data, the split, the seed.
        parts: What follows on the page.
        numbers: Plain values for JSON, without NaN.
        tables: Rows by the name of their CSV file, without the suffix.
        head: What the JSON file has before the numbers; the title and what is known if not given.
        short: The table that the terminal shows.
        warnings: What the terminal says first, such as routers that couldn't be fitted.
    """

    name: str
    title: str
    parts: Sequence[Part]
    numbers: Mapping[str, Any]
    said: Sequence[str] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
    head: Mapping[str, Any] | None = None
    short: Table | None = None
    warnings: Sequence[str] = ()

    @property
    def figures(self) -> dict[str, ReportFigure]:
        """The figures among the parts, by name."""
        return {one.name: one for one in _figures(self.parts)}


def sure(difference: Estimate, better: Better) -> Sure:
    """What a difference says of the first of two: nothing where its interval holds 0."""
    if better == "neither" or not (difference.lower > 0 or difference.upper < 0):
        return ""
    return "better" if (difference.lower > 0) == (better == "higher") else "worse"


def estimate_cell(estimate: Estimate, unit: Unit, *, signed: bool = False, held: Sure = "") -> Cell:
    """A cell with a number, its interval under it, and why it isn't defined as a hint.

    Args:
        estimate: The number.
        unit: Of it.
        signed: Whether a plus is shown.
        held: How it does against what it is held against, see `BOLD`.
    """
    text = worded(estimate.value, unit, signed=signed)
    return Cell(text, note=interval(estimate, unit), hint=estimate.reason, held=held)


def heading(entry: MetricEntry, *, unit: str = "") -> str:
    """The head of a number's column: its name, and which direction is better.

    Args:
        entry: Of the number.
        unit: What stands between them where the number is in US dollars, `{}` for how many queries.
    """
    dollars = unit.format(f"{PER:,}") if entry.unit == "usd" else ""
    return entry.label + dollars + _ARROWS[entry.better]


def flat(numbers: Mapping[str, Estimate]) -> dict[str, float]:
    """Numbers for the columns of a CSV file: each value, then the ends of its interval."""
    row: dict[str, float] = {}
    for name, one in numbers.items():
        row |= {name: one.value, f"{name}_lower": one.lower, f"{name}_upper": one.upper}
    return row


def ends(one: Estimate, *, name: str = "value") -> dict[str, float]:
    """A number for the columns of a CSV file: its value, then the ends of its interval."""
    return {name: one.value, "lower": one.lower, "upper": one.upper}


def plain_numbers(numbers: Mapping[Any, Estimate]) -> dict[str, Any]:
    """Numbers for JSON by name, each with its interval; None where one isn't defined."""
    return {name: one.to_dict() for name, one in numbers.items()}


def _figures(parts: Sequence[Part]) -> Iterator[ReportFigure]:
    for part in parts:
        if isinstance(part, ReportFigure):
            yield part
        elif isinstance(part, Section | Folded):
            yield from _figures(part.parts)
