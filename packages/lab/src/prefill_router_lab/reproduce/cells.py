"""A reported table: our number with its interval, and the paper's number beside it.

The paper's own numbers, as printed in its tables, and the differences to our definitions.

`DIFFERENCES` lists where our definitions or methods differ from the paper's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal, final

import yaml

from prefill_router.evaluation import HEADLINE, NOTHING, Estimate, plain
from prefill_router.money import dollars
from prefill_router.short_repr import short_repr
from prefill_router_lab.reproduce.systems import POOLS, PoolRun

Value = str | float | Mapping[str, float]


@final
@dataclass(frozen=True)
class PublishedNumber:
    """One number of the paper.

    Attributes:
        value: The number.
        lower: The lower bound of its 95 % interval, where the paper gives one.
        upper: The upper bound.
        sd: Its standard deviation over training seeds, where the paper gives one.
        count: The number of queries that it is based on, where the paper gives it.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    sd: float | None = None
    count: int | None = None

    def to_dict(self) -> dict[str, float | int]:
        """Plain values for JSON; what the paper doesn't give is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


@short_repr
@final
@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper.

    Attributes:
        number: The table's number in the paper.
        label: Its label in the paper's source.
        where: Its section in the paper.
        title: Its title.
        keys: The columns that name a row.
        rows: Its rows by column, as printed; shares are of 1.
    """

    number: int
    label: str
    where: str
    title: str
    keys: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]

    def of_pool(self, pool: str) -> list[Mapping[str, Value]]:
        """The rows of one pool; all rows where the table has only one pool."""
        return [row for row in self.rows if row.get("pool", pool) == pool]

    def find(self, pool: str, name: str) -> Mapping[str, Value]:
        """The row of a pool with this name in the last key column; empty if there is none."""
        rows = [row for row in self.of_pool(pool) if row[self.keys[-1]] == name]
        return rows[0] if rows else {}

    def number_of(self, pool: str, name: str, column: str) -> PublishedNumber | None:
        """One cell; None where the paper has none."""
        return number(self.find(pool, name), column)


def number(row: Mapping[str, Value], column: str) -> PublishedNumber | None:
    """A cell of a row; None where the paper has none."""
    value = row.get(column)
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, Mapping):
        return PublishedNumber(float(value))
    bounds = {name: value[name] for name in ("value", "lower", "upper", "sd") if name in value}
    return PublishedNumber(**bounds, count=int(value["count"]) if "count" in value else None)


@cache
def read_published() -> Mapping[str, PublishedTable]:
    """All tables of the paper by label, in its order."""
    folder = files("prefill_router_lab.reproduce") / "paper"
    texts = [
        entry.read_text(encoding="utf-8") for entry in folder.iterdir() if _is_table(entry.name)
    ]
    tables = sorted(
        (_make_published(yaml.safe_load(text)) for text in texts), key=lambda table: table.number
    )
    return {table.label: table for table in tables}


def _is_table(name: str) -> bool:
    return name.endswith(".yaml")


def _make_published(value: Mapping[str, Any]) -> PublishedTable:
    return PublishedTable(
        number=value["table"],
        label=value["label"],
        where=value["where"],
        title=value["title"],
        keys=tuple(value["keys"]),
        rows=tuple(value["rows"]),
    )


_CURVE = (
    "Ours uses every operating point of the exact path over lam with inverse cost; the paper uses "
    "a grid. Its own router has 0.4377 on the frontier pool in Table 5 and 0.4536 in Table 24. So "
    "the paper itself has more than one definition."
)
_BEST = (
    "Max-lam accuracy is the highest along the curve, chosen on the queries that it is measured "
    "on, as the paper's appendix defines it; it is chosen again in each resample."
)
_SWEEP = (
    "Test AUC of a logistic probe on PCA components of last-token states, at the layer of "
    "greatest Fisher J for each target. All is chosen and fitted on the train part. Our intervals "
    "are Hanley and McNeil's (1982) for a single AUC; the paper gives none."
)
_EXTREMES = (
    "The paper ranks its semantic experiments without SharedTrunkNet; ours are ranked among all "
    "fitted routers, including the prefill ones."
)
_SHIFT = (
    "Every router is tested on the same queries, all of the test part: no reference has seen any "
    "of them. The paper tests on all questions of the shifted kind, 3,503 and 1,225. Its "
    "reference, trained on the whole train part, may have seen some of those. The last "
    "reference is trained on as many queries as the shifted router, so that the effect of less "
    "data isn't mistaken for shift; the paper has no such reference. Every router is a single "
    "network here, not an ensemble, which lowers all three arms alike."
)

DIFFERENCES: Mapping[str, tuple[str, ...]] = {
    "tab:dataset": (
        "A description of the data, so there are no intervals. Queries are those on which any "
        "target was measured; regimes are over the targets measured on a query.",
        "In the paper, the share that all fail and the oracle's accuracy add up to more than 100 % "
        "(103.5 on the frontier pool, 100.2 on the small, 102.2 on the mixed). But the oracle "
        "can't solve what all fail. Its Table 4 repeats these accuracies. Ours add up to 100 % on "
        "labels of 0 and 1.",
    ),
    "tab:frontier_sweep": (_SWEEP,),
    "tab:small_sweep": (_SWEEP,),
    "tab:mixed_sweep": (_SWEEP,),
    "tab:per_llm_routing": (
        "kNN is the majority vote of 25 neighbours, as the paper's kNN voting. Routed-to accuracy "
        "is at lam = 1, weighted by the queries routed to each target.",
    ),
    "tab:headroom_summary": (
        _BEST,
        "No setting is chosen on train rows: that would take five more fits of every router.",
        "Gain, headroom and savings are at that point, and oracle and best single target are those "
        "of the test part; savings are against the target with the highest mean cost.",
    ),
    "tab:global_routing": (
        _CURVE,
        "Oracle distance is the mean over the distinct operating points, each counted once; it "
        "depends on how many points a grid meets, and the paper doesn't name its grid.",
    ),
    "tab:layer_selector_ablation": (
        "Mean five-fold probe AUC over the targets, last token, on the train part. Fisher J picks "
        "a layer for each target. It is a mean over folds and has no interval.",
    ),
    "tab:mmlupro_shift": (
        _SHIFT,
        "The paper doesn't list its categories; ours follow MMLU's own grouping.",
    ),
    "tab:hle_shift": (_SHIFT,),
    **{
        f"tab:{pool}_{key}": (_EXTREMES,)
        for pool in ("frontier", "small", "mixed")
        for key in ("auc", "brier")
    },
    "tab:seed_variability_all": (
        "Every router is a single network here, not an ensemble, as in the paper: the numbers are "
        "therefore a little lower than those of the ensembles in the other tables. ± is the sample "
        "standard deviation over seeds, not a confidence interval.",
    ),
    **{f"tab:bootstrap_{pool}": (_BEST, _CURVE) for pool in ("frontier", "small", "mixed")},
    "tab:paired_bootstrap_unified": (
        "Both systems are judged on the same resampled queries; an interval that excludes 0 shows "
        "a significant difference, taken by itself: there is no correction for how many there are.",
    ),
    "tab:end_to_end_cost_points": (
        "The encoder is charged at the paper's price for Qwen3.5-35B, or at the given price, for "
        "the tokens that it reads; for a small encoder that is far more than its real cost. The "
        "semantic router is Unified Multitask, which is not charged, as in the paper. The best "
        "single target is the best on the train part. Totals are mean costs times the number of "
        "test queries.",
    ),
    "tab:end_to_end_latency": (
        "Routing is timed on this machine, one request after the other, encoding included; the "
        "completion time of a target needs its published or measured speed.",
    ),
    "tab:lambda_operating_points": (
        "Points that several values of lam share are counted once; the paper's first step keeps "
        "all 101. Q1 to Q4 are four equal parts of the range of cost, Q4 the most expensive.",
    ),
}
"""Notes by the label of the table."""


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
        notes: Notes: how a definition differs, why something is missing.
        missing: Why none of our numbers are there; empty where some are.
    """

    number: int
    label: str
    where: str
    title: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
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
            "said": list(self.notes),
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
        import_module(f"prefill_router_lab.reproduce.{module}")
    tables: list[PaperTable] = []
    for make in _MAKERS:
        result = make(runs)
        tables += [result] if isinstance(result, PaperTable) else result
    return sorted(tables, key=lambda table: table.number)


def exact(value: float) -> Estimate:
    """A number without an interval, since it describes the data or is given."""
    return Estimate(float(value), math.nan, math.nan)


def exact_or_none(value: float | None) -> Estimate | None:
    """A number without an interval; None where it isn't known."""
    return None if value is None or math.isnan(value) else exact(value)


def format_value(value: float, unit: Unit, *, signed: bool = False) -> str:
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


def format_interval(lower: float | None, upper: float | None, unit: Unit) -> str:
    """An interval with its unit given once; empty where there is none."""
    if lower is None or upper is None or not (math.isfinite(lower) and math.isfinite(upper)):
        return ""
    low, high = format_value(lower, unit), format_value(upper, unit)
    for suffix in (" %", " pp", " s"):
        low = low.removesuffix(suffix)
    return f"{low} to {high.removeprefix('$')}"


def make_table(
    label: str,
    keys: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[TableRow],
    *,
    notes: Sequence[str] = (),
    missing: str = "",
) -> PaperTable:
    """A table with the paper's title and section, and notes on how our definitions differ."""
    paper = read_published()[label]
    return PaperTable(
        number=paper.number,
        label=label,
        where=paper.where,
        title=paper.title,
        keys=tuple(keys),
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(*notes, *DIFFERENCES.get(label, ())),
        missing=missing,
    )


def find_run(runs: Sequence[PoolRun], pool: str) -> PoolRun | None:
    """The run that corresponds to a pool of the paper; None where there is none."""
    return next((run for run in runs if run.pool == pool), None)


def note_differences(runs: Sequence[PoolRun]) -> list[str]:
    """Notes on the correspondence of the paper's pools to ours, where it isn't exact."""
    notes = [
        f"In italics: the paper's {run.pool} pool, for context only: these aren't the paper's "
        "targets."
        for run in runs
        if not run.paper_pool.is_counterpart
    ]
    notes += [
        f"{run.title}: the data lack {', '.join(run.paper_pool.absent)}, which are in the paper."
        for run in runs
        if run.paper_pool.absent
    ]
    return notes


def note_absent_pools(runs: Sequence[PoolRun]) -> list[str]:
    """A note on the pools of the paper that the data don't have."""
    absent = [pool for pool in POOLS if find_run(runs, pool) is None]
    if not absent:
        return []
    return [
        f"The data have no {' and no '.join(absent)} pool; the paper's rows of it are left out."
    ]


def make_paper_only(
    label: str, pool: str, units: Mapping[str, Unit], keys: Sequence[str]
) -> PaperTable:
    """A table about a pool that the data don't have: the paper's numbers alone."""
    paper = read_published()[label]
    columns = list(dict.fromkeys(c for row in paper.rows for c in row if _is_number(row, c)))
    rows = [paper_row(row, columns, units, paper) for row in paper.of_pool(pool)]
    heads = [HEADLINE[name].label if name in HEADLINE else name for name in columns]
    return make_table(
        label, keys, heads, rows, missing=f"The data have no {pool} pool of the paper."
    )


def paper_row(
    row: Mapping[str, Value],
    columns: Sequence[str],
    units: Mapping[str, Unit],
    paper: PublishedTable,
) -> TableRow:
    """A row with only the paper's numbers."""
    names = [str(row[key]) for key in paper.keys if key != "pool"]
    if "place" in paper.keys:
        names.append(name_experiment(row))
    cells = [
        TableCell(None, number(row, column), units.get(column, "number")) for column in columns
    ]
    return TableRow(tuple(names), tuple(cells))


def name_experiment(row: Mapping[str, Value]) -> str:
    """The paper's name of an experiment: its router, with the embeddings in brackets."""
    return f"{row['system']} [{row['variant']}]" if "variant" in row else str(row["system"])


def _is_number(row: Mapping[str, Value], column: str) -> bool:
    return not isinstance(row[column], str)
