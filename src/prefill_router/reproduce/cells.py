"""A reported table: our number with its interval, and the paper's number beside it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, final

from prefill_router.evaluation import HEADLINE, NOTHING, Estimate, dollars, plain
from prefill_router.reproduce.paper_numbers import (
    DIFFERENCES,
    Published,
    PublishedNumber,
    Value,
    number,
    published,
)
from prefill_router.reproduce.pools import POOLS
from prefill_router.reproduce.systems import PoolRun

Unit = Literal["number", "share", "points", "count", "usd", "seconds"]
"""Shares are of 1, and differences of shares are points."""


_ROUNDED: Mapping[Unit, float] = {
    **{"number": 5e-5, "share": 5e-5, "points": 5e-5},
    **{"count": 0.5, "seconds": 5e-4, "usd": 0.0},
}
"""Smaller values are shown as 0 without a sign."""


@final
@dataclass(frozen=True)
class TableCell:
    """One number, ours and the paper's.

    Attributes:
        ours: Our number, with its interval where there is one; None where we have none.
        paper: The paper's number; None where it has none.
        unit: The unit of both.
        sd: The standard deviation of ours over training seeds, where the table reports that.
        why: The reason why ours is missing.
    """

    ours: Estimate | None
    paper: PublishedNumber | None
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
class TableRow:
    """A row of a table.

    Attributes:
        names: The row's names, one per key of the table.
        cells: The cells, one per column.
    """

    names: tuple[str, ...]
    cells: tuple[TableCell, ...]


@final
@dataclass(frozen=True)
class PaperTable:
    """A reproduced table of the paper.

    Attributes:
        number: The table's number in the paper.
        label: Its label in the paper's source.
        where: Its section in the paper.
        title: Its title.
        keys: Headings of the names of a row.
        columns: Headings of the columns of numbers.
        rows: The rows, including rows with only the paper's numbers where ours can't be computed.
        said: Notes: how a definition differs, why something is missing.
        missing: Why none of our numbers are there; empty where some are.
    """

    number: int
    label: str
    where: str
    title: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
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


Maker = Callable[[Sequence[PoolRun]], PaperTable | list[PaperTable]]
_MAKERS: list[Maker] = []


MODULES = ("router_tables", "study_tables")
"""The modules with tables."""


def paper_table(make: Maker) -> Maker:
    """Register a function that makes one or several tables of the paper from the pools' runs."""
    _MAKERS.append(make)
    return make


def all_tables(runs: Sequence[PoolRun]) -> list[PaperTable]:
    """Every table of the paper, in its order; tables that can't be made give the reason."""
    for module in MODULES:
        import_module(f"prefill_router.reproduce.{module}")
    made: list[PaperTable] = []
    for make in _MAKERS:
        result = make(runs)
        made += [result] if isinstance(result, PaperTable) else result
    return sorted(made, key=lambda table: table.number)


def exact(value: float) -> Estimate:
    """A number without an interval, since it describes the data or is given."""
    return Estimate(float(value), math.nan, math.nan)


def known(value: float | None) -> Estimate | None:
    """A number without an interval; None where it isn't known."""
    return None if value is None or math.isnan(value) else exact(value)


def shown(value: float, unit: Unit, *, signed: bool = False) -> str:
    """A number with its unit, with as many digits as in the paper."""
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
    """An interval with its unit given once; empty where there is none."""
    if lower is None or upper is None or not (math.isfinite(lower) and math.isfinite(upper)):
        return ""
    low, high = shown(lower, unit), shown(upper, unit)
    for suffix in (" %", " pp", " s"):
        low = low.removesuffix(suffix)
    return f"{low} to {high.removeprefix('$')}"


def make(
    label: str,
    keys: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[TableRow],
    *,
    said: Sequence[str] = (),
    missing: str = "",
) -> PaperTable:
    """A table with the paper's title and section, and notes on how our definitions differ."""
    paper = published()[label]
    return PaperTable(
        number=paper.number,
        label=label,
        where=paper.where,
        title=paper.title,
        keys=tuple(keys),
        columns=tuple(columns),
        rows=tuple(rows),
        said=(*said, *DIFFERENCES.get(label, ())),
        missing=missing,
    )


def of_pool(runs: Sequence[PoolRun], pool: str) -> PoolRun | None:
    """The run that corresponds to a pool of the paper; None where there is none."""
    return next((run for run in runs if run.pool == pool), None)


def context(runs: Sequence[PoolRun]) -> list[str]:
    """Notes on the correspondence of the paper's pools to ours, where it isn't exact."""
    said = [
        f"In italics: the paper's {run.pool} pool, for context only: these aren't the paper's "
        "targets."
        for run in runs
        if not run.found.is_counterpart
    ]
    said += [
        f"{run.title}: the data lack {', '.join(run.found.absent)}, which are in the paper."
        for run in runs
        if run.found.absent
    ]
    return said


def left_out(runs: Sequence[PoolRun]) -> list[str]:
    """A note on the pools of the paper that the data don't have."""
    absent = [pool for pool in POOLS if of_pool(runs, pool) is None]
    if not absent:
        return []
    return [
        f"The data have no {' and no '.join(absent)} pool; the paper's rows of it are left out."
    ]


def no_pool(label: str, pool: str, units: Mapping[str, Unit], keys: Sequence[str]) -> PaperTable:
    """A table about a pool that the data don't have: the paper's numbers alone."""
    paper = published()[label]
    columns = list(dict.fromkeys(c for row in paper.rows for c in row if _is_number(row, c)))
    rows = [paper_row(row, columns, units, paper) for row in paper.of_pool(pool)]
    heads = [HEADLINE[name].label if name in HEADLINE else name for name in columns]
    return make(label, keys, heads, rows, missing=f"The data have no {pool} pool of the paper.")


def paper_row(
    row: Mapping[str, Value], columns: Sequence[str], units: Mapping[str, Unit], paper: Published
) -> TableRow:
    """A row with only the paper's numbers."""
    names = [str(row[key]) for key in paper.keys if key != "pool"]
    if "place" in paper.keys:
        names.append(experiment(row))
    cells = [
        TableCell(None, number(row, column), units.get(column, "number")) for column in columns
    ]
    return TableRow(tuple(names), tuple(cells))


def experiment(row: Mapping[str, Value]) -> str:
    """The paper's name of an experiment: its router, with the embeddings in brackets."""
    return f"{row['system']} [{row['variant']}]" if "variant" in row else str(row["system"])


def _is_number(row: Mapping[str, Value], column: str) -> bool:
    return not isinstance(row[column], str)
