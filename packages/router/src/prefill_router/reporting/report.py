"""The parts of a report: text, tables and figures, independent of the output format.

A part of a page is a paragraph (a string), a list of facts (a mapping), or one of the classes here.
Everything is plain text, which `report_files` escapes; none of it is HTML.

These classes save every result from writing files of its own: one description becomes the page, the
JSON and CSV files, the figures, and the table in the terminal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, final

from prefill_router.evaluation import PER, Better, Estimate, MetricEntry, Unit, interval, worded
from prefill_router.short_repr import short_repr

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table as TerminalTable

Significance = Literal["", "better", "worse"]
Rows = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""The rows of a CSV file, or its columns."""
BOLD = (
    "Bold: significantly better than the reference on the same queries (the interval of the "
    "difference excludes 0); in brackets: significantly worse. Each mark is one comparison by "
    "itself, without a correction for how many there are: where nothing differs, about one in 20 "
    "is marked by chance."
)
"""What bold and brackets mean in every table of every page."""
UNDERLINED = "Underlined: the best of its row, significantly or by chance."
CHANCE_AUC: Final = 0.5
"""The AUC of chance; nothing at or below it is marked as the best."""
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}


@final
@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The content.
        note: Small text under it.
        hint: Tooltip.
        compared: Whether it is significantly better or worse than the reference, see `BOLD`.
        best: Whether it is the best of its row, see `UNDERLINED`.
        words: Whether it is prose and not a number.
        cited: Small italic lines under the note: results that others published.
        folded: Text that is shown when the cell is expanded.
    """

    text: str
    note: str = ""
    hint: str = ""
    compared: Significance = ""
    best: bool = False
    words: bool = False
    cited: tuple[str, ...] = ()
    folded: str = ""


Row = list[str | Cell]
"""A row of a table."""


def as_cell(content: str | Cell) -> Cell:
    """The cell itself, or a new cell with the given text."""
    return Cell(content) if isinstance(content, str) else content


@short_repr
@final
@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row heads it.

    Attributes:
        head: Headings of the columns.
        rows: The cells; a string is a cell with that text alone.
        note: Small text above the table.
        otherwise: Text shown instead where there are no rows.
        right_from: The first column that is aligned to the right in a terminal.
        unbroken: Whether those columns never wrap in a terminal.
    """

    kind: ClassVar[str] = "table"
    head: Sequence[str | Cell]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""
    otherwise: str = ""
    right_from: int | None = None
    unbroken: bool = False

    def for_terminal(self) -> "TerminalTable":
        """The table for a terminal."""
        # Here and not above: pages need no terminal.
        from rich.table import Table as TerminalTable

        table = TerminalTable(box=None, pad_edge=False, show_header=bool(self.head))
        for place, head in enumerate(self.head):
            right = self.right_from is not None and place >= self.right_from
            justify: Literal["left", "right"] = "right" if right else "left"
            table.add_column(as_cell(head).text, justify=justify, no_wrap=right and self.unbroken)
        for row in self.rows:
            table.add_row(*(as_cell(cell).text for cell in row))
        return table


@short_repr
@final
@dataclass(frozen=True, eq=False)
class ReportFigure:
    """A figure of a report.

    Attributes:
        name: Name of its files.
        figure: The figure.
        rows: The data that it is drawn from.
        caption: The caption.
        label: Text alternative for screen readers; the name if not given.
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
    """Highlighted text at the top: a verdict, with or without its word in front."""

    kind: ClassVar[str] = "banner"
    lines: Sequence[str]
    word: str = ""


@final
@dataclass(frozen=True)
class Cards:
    """A few numbers in large print, each with its name, value and note."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[tuple[str, str, str]]


@short_repr
@final
@dataclass(frozen=True)
class Checks:
    """A list of checks, each with its CSS class, sign, title and result."""

    kind: ClassVar[str] = "checks"
    checks: Sequence[tuple[str, str, str, str]]


@short_repr
@final
@dataclass(frozen=True)
class Folded:
    """Parts that are collapsed under a title until expanded."""

    kind: ClassVar[str] = "folded"
    title: str
    parts: "Sequence[Part]"


@short_repr
@final
@dataclass(frozen=True)
class Section:
    """Parts under a heading."""

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
        name: Name of its JSON file, without the suffix.
        title: Title of the page.
        summary: The result in sentences, for the page and the terminal.
        facts: Facts about the run: the data, the split, the seed.
        parts: The rest of the page.
        numbers: Plain values for JSON, without NaN.
        tables: Rows by the name of their CSV file, without the suffix.
        head: Entries of the JSON file before the numbers; the title and the facts (as
            `known`) if not given.
        short: The table for the terminal.
        warnings: Lines shown first in the terminal, for example routers that couldn't be fitted.
    """

    name: str
    title: str
    parts: Sequence[Part]
    numbers: Mapping[str, Any]
    summary: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
    head: Mapping[str, Any] | None = None
    short: Table | None = None
    warnings: Sequence[str] = ()

    @property
    def figures(self) -> dict[str, ReportFigure]:
        """The figures among the parts, by name."""
        return {figure.name: figure for figure in _find_figures(self.parts)}


def significance(difference: Estimate, better: Better) -> Significance:
    """Whether the first of two systems is better or worse; empty where the interval contains 0."""
    if better == "neither" or not (difference.lower > 0 or difference.upper < 0):
        return ""
    return "better" if (difference.lower > 0) == (better == "higher") else "worse"


def estimate_cell(
    estimate: Estimate, unit: Unit, *, signed: bool = False, compared: Significance = ""
) -> Cell:
    """A cell with a number, its interval below, and the reason why it isn't defined as a tooltip.

    Args:
        estimate: The number.
        unit: Its unit.
        signed: Whether a plus sign is shown.
        compared: Whether it is significantly better or worse than the reference, see `BOLD`.
    """
    text = worded(estimate.value, unit, signed=signed)
    return Cell(text, note=interval(estimate, unit), hint=estimate.reason, compared=compared)


def heading(entry: MetricEntry, *, unit: str = "") -> str:
    """The heading of a metric's column: its name, and which direction is better.

    Args:
        entry: The metric.
        unit: Inserted for numbers in US dollars, with `{}` for the number of queries.
    """
    dollars = unit.format(f"{PER:,}") if entry.unit == "usd" else ""
    return entry.label + dollars + _ARROWS[entry.better]


def flat(numbers: Mapping[str, Estimate]) -> dict[str, float]:
    """Numbers as columns of a CSV file: each value, then the bounds of its interval."""
    row: dict[str, float] = {}
    for name, estimate in numbers.items():
        row |= {
            name: estimate.value,
            f"{name}_lower": estimate.lower,
            f"{name}_upper": estimate.upper,
        }
    return row


def ends(estimate: Estimate, *, name: str = "value") -> dict[str, float]:
    """A number as columns of a CSV file: its value, then the bounds of its interval."""
    return {name: estimate.value, "lower": estimate.lower, "upper": estimate.upper}


def _find_figures(parts: Sequence[Part]) -> Iterator[ReportFigure]:
    for part in parts:
        if isinstance(part, ReportFigure):
            yield part
        elif isinstance(part, Section | Folded):
            yield from _find_figures(part.parts)
