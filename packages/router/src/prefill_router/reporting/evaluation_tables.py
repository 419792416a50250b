"""The tables of an evaluation's report: each is one function, registered by `report_table`.

Each table has a section of its own on the page, in the order of this file. A table with `rows` is
also written to a CSV file beside the page.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.evaluation import (
    HEADLINE,
    NOTHING,
    REGIME,
    TARGET,
    Evaluation,
    ReferenceGain,
    worded,
)
from prefill_router.reporting.report import Cell, Row, Rows, Table, estimate_cell, flat, heading

_COLUMNS = ("accuracy", "mean_cost", "auc", "brier", "share_routed", "accuracy_routed",
            "accuracy_delta", "cost_routed", "cost_delta")  # fmt: skip


@final
@dataclass(frozen=True)
class ReportTable:
    """A table of the report.

    Attributes:
        name: Name of its CSV file, without the suffix.
        title: Heading of its section of the page.
        note: Text above it on the page.
        make: Makes it from an evaluation.
        rows: Makes the rows of the CSV file; None for no file.
    """

    name: str
    title: str
    note: str
    make: Callable[[Evaluation], Table]
    rows: Callable[[Evaluation], Rows] | None


REPORT_TABLES: dict[str, ReportTable] = {}
"""Every table by name, in the order of the page."""


def report_table(
    name: str, title: str, note: str = "", *, rows: Callable[[Evaluation], Rows] | None = None
) -> Callable[[Callable[[Evaluation], Table]], Callable[[Evaluation], Table]]:
    """Register a function of an evaluation as a table of its report.

    Args:
        name: Name of its CSV file, without the suffix; unique among the tables.
        title: Heading of its section of the page.
        note: Text above it on the page.
        rows: Makes the rows of the CSV file; none is written if not given.

    Raises:
        ValueError: Another table has this name.
    """

    def register(make: Callable[[Evaluation], Table]) -> Callable[[Evaluation], Table]:
        if name in REPORT_TABLES:
            raise ValueError(f"two tables of the report are called {name!r}; rename one of them")
        REPORT_TABLES[name] = ReportTable(name, title, note, make, rows)
        return make

    return register


@report_table(
    "references",
    "Beside rules that read no request",
    "Both rules spend as much as the router. The best fixed mix sends fixed shares of the queries "
    "to fixed targets. Price alone knows what the router predicts that each answer will cost, and "
    "how often each target was right on train rows. A gain is the router's accuracy minus the "
    "rule's.",
)
def references(evaluation: Evaluation) -> Table:
    """The router's gains over both references, at each point of its curve."""
    rows: list[Row] = []
    ruling = evaluation.verdict
    for point in () if ruling is None else ruling.curve:
        name = _POINTS.get(point.name) or f"{100 * float(point.name):.0f} % of the best's price"
        cells: Row = [Cell(name, note=f"lam {point.lam:.3g}"), worded(point.accuracy, "share")]
        for gain in (point.mix, point.price):
            cells += ["", ""] if gain is None else _make_gain_cells(gain)
        rows.append(cells)
    head = ["Setting", "Router", "Best mix", "gain over it", "Price alone", "gain over it"]
    return Table(head, rows, otherwise="The router's references aren't known.")


_POINTS = {
    "setting": "the router's setting",
    "level": "as accurate as the best",
    "cheapest": "the cheapest's price",
    "accurate": "the most accurate",
}


def _make_gain_cells(gain: ReferenceGain) -> Row:
    return [worded(gain.accuracy, "share"), estimate_cell(gain.gain, "points", signed=True)]


@report_table("headline", "All numbers")
def headline(evaluation: Evaluation) -> Table:
    """Every headline number with its interval and its meaning."""
    rows: list[Row] = []
    for name, estimate in evaluation.headline.items():
        entry = HEADLINE[name]
        meaning = entry.meaning + (
            f" Not defined here: {estimate.reason}." if estimate.reason else ""
        )
        label = heading(entry, unit=" ($ per {})")
        rows.append([label, estimate_cell(estimate, entry.unit), Cell(meaning, words=True)])
    return Table(["", "value, 95 % interval", Cell("what it means", words=True)], rows)


def _target_rows(evaluation: Evaluation) -> Rows:
    return [{"target": name, **flat(values)} for name, values in evaluation.per_target.items()]


@report_table(
    "targets",
    "The targets",
    "AUC and Brier judge the predicted probabilities of each target. The other columns describe "
    "routing at lam = 1: a good router sends a target the queries that it is better at, so its "
    "routing delta is above zero.",
    rows=_target_rows,
)
def targets(evaluation: Evaluation) -> Table:
    """Every target's numbers."""
    head = ["Target", *(heading(TARGET[name], unit=", $ per {}") for name in _COLUMNS)]
    rows: list[Row] = [
        [target, *(estimate_cell(values[name], TARGET[name].unit) for name in _COLUMNS)]
        for target, values in evaluation.per_target.items()
    ]
    return Table(head, rows)


@report_table(
    "regimes",
    "Where routing can help",
    "The choice of target matters only where the targets disagree.",
)
def regimes(evaluation: Evaluation) -> Table:
    """Where all targets are right, all are wrong, or they disagree."""
    rows = []
    for name, count in evaluation.regime_sizes.items():
        values = evaluation.regimes.get(name)
        if values is None and not count:
            continue
        cells = [
            estimate_cell(values[key], entry.unit) if values else NOTHING
            for key, entry in REGIME.items()
        ]
        rows.append([name, f"{count:,}", *cells])
    return Table(["Regime", "Queries", *(entry.label for entry in REGIME.values())], rows)


def _step_rows(evaluation: Evaluation) -> Rows:
    return [step.to_dict() for step in evaluation.steps]


@report_table(
    "operating_points",
    "Operating points",
    "Distinct operating points on a grid of lam, by quarter of the range of mean cost (Q1 is the "
    "cheapest). Then the curve's metrics on that grid, with inverse or linear cost.",
    rows=_step_rows,
)
def operating_points(evaluation: Evaluation) -> Table:
    """The operating points on grids of lam, by step."""
    head = ["Step of lam", "Points", "Q1", "Q2", "Q3", "Q4", "P-AUCCC", "linear",
            "Oracle distance", "linear"]  # fmt: skip
    rows = []
    for step in evaluation.steps:
        counts = (step.points, step.q1, step.q2, step.q3, step.q4)
        areas = [step.p_auccc, step.p_auccc_linear]
        numbers = [*areas, step.oracle_distance, step.oracle_distance_linear]
        label = "exact" if step.step is None else f"{step.step:g}"
        rows.append([label, *(f"{n:,}" for n in counts), *(worded(n, "number") for n in numbers)])
    return Table(head, rows)


def csv_tables(evaluation: Evaluation) -> Mapping[str, Rows]:
    """The rows of the CSV files by name: the curve, and the tables that have rows."""
    rows = {table.name: table.rows(evaluation) for table in REPORT_TABLES.values() if table.rows}
    return {"curve": evaluation.curve.columns(), **rows}
