"""A table as it is reported: our number with its interval, and the paper's beside it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.bootstrap import plain
from prefill_router.evaluation.wording import NOTHING, dollars
from prefill_router.reports.reproduce.published import Number

Unit = Literal["number", "share", "points", "count", "usd", "seconds"]
"""Shares are of 1, differences of shares are points; dollars and seconds are as they are."""


_ROUNDED: Mapping[Unit, float] = {
    **{"number": 5e-5, "share": 5e-5, "points": 5e-5},
    **{"count": 0.5, "seconds": 5e-4, "usd": 0.0},
}
"""What is less is shown as 0, and then without a sign."""


@final
@dataclass(frozen=True)
class Cell:
    """One number, ours and the paper's.

    Attributes:
        ours: Ours, with its interval where there is one; nothing where we have none.
        paper: The paper's; nothing where it has none.
        unit: Of both.
        sd: The standard deviation of ours over training seeds, where that is what is asked.
        why: Why ours isn't there.
    """

    ours: Estimate | None
    paper: Number | None
    unit: Unit
    sd: float | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ours = None if self.ours is None else self.ours.to_dict()
        if ours is not None and self.sd is not None:
            ours["sd"] = plain(self.sd)
        result = {
            "ours": ours,
            "paper": None if self.paper is None else self.paper.to_dict(),
            "unit": self.unit,
        }
        return result | ({"why": self.why} if self.why else {})


@final
@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        names: What it is about, one text per key of the table.
        cells: One per column.
    """

    names: tuple[str, ...]
    cells: tuple[Cell, ...]


@final
@dataclass(frozen=True)
class Table:
    """A table of the paper, rebuilt.

    Attributes:
        number: Of the table in the paper.
        label: Its label in the paper's source.
        where: The section that it stands in.
        title: What it shows.
        keys: What the names of a row are.
        columns: Heads of the columns of numbers.
        rows: The rows; those of the paper alone too, where ours can't be computed.
        said: What must be known to read it: how a definition differs, why something is missing.
        missing: Why there is none of ours at all; empty where there is.
    """

    number: int
    label: str
    where: str
    title: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    said: tuple[str, ...] = ()
    missing: str = ""

    @property
    def file_name(self) -> str:
        """The name of its CSV, without the suffix."""
        return f"table_{self.number:02d}_{self.label.removeprefix('tab:')}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {
                **dict(zip(self.keys, row.names, strict=True)),
                "numbers": {
                    column: cell.to_dict()
                    for column, cell in zip(self.columns, row.cells, strict=True)
                },
            }
            for row in self.rows
        ]
        return {
            "table": self.number,
            "where": self.where,
            "title": self.title,
            "said": list(self.said),
            "missing": self.missing,
            "rows": rows,
        }

    def flat(self) -> list[dict[str, Any]]:
        """One row per number, for a CSV."""
        result = []
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                ours, paper = cell.ours, cell.paper
                result.append(
                    {
                        **dict(zip(self.keys, row.names, strict=True)),
                        "number": column,
                        "unit": cell.unit,
                        "ours": None if ours is None else plain(ours.value),
                        "ours_lower": None if ours is None else plain(ours.lower),
                        "ours_upper": None if ours is None else plain(ours.upper),
                        "ours_sd": cell.sd,
                        "paper": None if paper is None else paper.value,
                        "paper_lower": None if paper is None else paper.lower,
                        "paper_upper": None if paper is None else paper.upper,
                        "paper_sd": None if paper is None else paper.sd,
                    }
                )
        return result


def exact(value: float) -> Estimate:
    """A number without an interval: it describes the data, or is given."""
    return Estimate(float(value), math.nan, math.nan)


def known(value: float | None) -> Estimate | None:
    """A number without an interval, or nothing."""
    return None if value is None or math.isnan(value) else exact(value)


def shown(value: float, unit: Unit, *, signed: bool = False) -> str:
    """A number with its unit, to as many digits as the paper gives."""
    if not math.isfinite(value):
        return NOTHING
    sign = "+" if signed or unit == "points" else ""
    value = value if abs(value) >= _ROUNDED[unit] else 0.0
    match unit:
        case "number":
            return f"{value:{sign}.4f}"
        case "share":
            return f"{100 * value:{sign}.2f} %"
        case "points":
            return f"{100 * value:{sign}.2f} pp"
        case "count":
            return f"{value:{sign},.0f}"
        case "usd":
            return dollars(value)
        case "seconds":
            return f"{value:{sign},.3f} s"


def spread(lower: float | None, upper: float | None, unit: Unit) -> str:
    """An interval in words, its unit named once; empty where there is none."""
    if lower is None or upper is None or not (math.isfinite(lower) and math.isfinite(upper)):
        return ""
    low, high = shown(lower, unit), shown(upper, unit)
    for suffix in (" %", " pp", " s"):
        low = low.removesuffix(suffix)
    return f"{low} to {high.removeprefix('$')}"


def joined(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Several tables for JSON, by their numbers."""
    return [table.to_dict() for table in sorted(tables, key=lambda one: one.number)]
