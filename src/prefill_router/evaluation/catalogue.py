"""The metrics by name: what each number means, how it is computed, and which variant was used.

A metric is one function of `Scores`, registered where it is written, in a module of `MODULES`:

    @metric("Mean AUC", "number", "higher")
    def _auc_mean(scores: Scores) -> PerResample:
        \"\"\"How often a question that a target answers correctly is given ...\"\"\"
        return macro_mean(scores.targets["auc"])

The function's name is the metric's name. Its docstring is the description shown to readers; after
`Reading:` it says which variant is used where several definitions exist. Tables, pages,
`metrics.json` and the documentation take these texts from here. The unit says how its numbers and
intervals are printed: as percentages, points, or dollars per thousand queries.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.evaluation.accuracy_cost_plane import Axis
from prefill_router.evaluation.bootstrap import Estimate

if TYPE_CHECKING:
    from prefill_router.evaluation.scores import Scores

Unit = Literal["share", "points", "usd", "number"]
Better = Literal["higher", "lower", "neither"]


NOTHING = "\u2013"
UNKNOWN = "?"
PER = 1000
"""Costs are shown per this many queries; files hold the cost per query."""


def digits(value: float, form: str) -> str:
    """A number in a format like `.4f`; a dash where it isn't defined."""
    return format(value, form) if math.isfinite(value) else NOTHING


def worded(value: float, unit: Unit, *, signed: bool = False) -> str:
    """A number with its unit; where it isn't defined, a dash, or a question mark for a cost."""
    if not math.isfinite(value):
        return UNKNOWN if unit == "usd" else NOTHING
    sign = "+" if signed or unit == "points" else ""
    match unit:
        case "share":
            return f"{100 * value:{sign}.1f} %"
        case "points":
            return f"{100 * value:{sign}.1f} pp"
        case "usd":
            return dollars(PER * value)
        case "number":
            return f"{value:{sign}.3f}"


def dollars(value: float) -> str:
    """US dollars, to three significant digits."""
    if value == 0:
        return "$0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{'-' if value < 0 else ''}${abs(value):,.{min(digits, 8)}f}"


def interval(estimate: Estimate, unit: Unit) -> str:
    """The 95 % interval of a number with its unit given once; empty where there is none."""
    if not (math.isfinite(estimate.lower) and math.isfinite(estimate.upper)):
        return ""
    lower, upper = (worded(end, unit) for end in (estimate.lower, estimate.upper))
    return f"{lower.removesuffix(' %').removesuffix(' pp')} to {upper.removeprefix('$')}"


MODULES = (
    "probability_metrics",
    "routing_metrics",
    "external_metrics",
)
"""The modules with metrics, in the order of the tables."""
Compute: TypeAlias = Callable[["Scores"], NDArray[np.float64]]
NOTHING_MEASURED = "no label or cost that it is computed from was measured"
NO_COST = "no cost is known, or every target is free"
NEEDS_ALL_LABELS = frozenset(
    (
        *("choice_auc", "choice_auc_best", "ece_mean", "ece_by_chance"),
        *("oracle_accuracy", "oracle_held_out", "headroom_captured", "chosen_headroom"),
        *("p_auccc", "mdp_auccc", "model_only_p_auccc", "normalised_accuracy", "pareto_dist"),
        *("oracle_distance", "oracle_distance_reduction", "model_only_oracle_distance"),
        *("solvable_share", "solvable_accuracy", "optimal_selection", "gap_oracle"),
    )
)
"""Metrics that aren't linear in the labels, so that estimates of labels don't give them."""
NOT_KNOWN = (
    "it depends on what several labels of one query say together, or on exact labels, which isn't "
    "known where chance selected the labels or they err; score every target on some queries"
)


@final
@dataclass(frozen=True)
class MetricEntry:
    """One metric.

    Attributes:
        label: Its name in tables, with its source in brackets where the name doesn't say that.
        unit: `share` of 1, a difference of shares (`points`), US dollars, or a plain number.
        better: Which direction is better.
        meaning: A description for somebody who hasn't read the paper.
        compute: Computes it in each resample; for targets or regimes, one column each.
        readings: The variant used where there are several, by subject; `{max_cost}` stands for the
            largest cost of AIQ.
        undefined: The reason where it isn't defined, as a text or a function of the scores.
        compares: Whether it compares systems, so that it uses only queries on which all outcomes
            are known.
    """

    label: str
    unit: Unit
    better: Better
    meaning: str
    compute: Compute
    readings: Mapping[str, str]
    undefined: "str | Callable[[Scores], str]"
    compares: bool


@final
@dataclass(eq=False)
class MetricTable(Mapping[str, MetricEntry]):
    """The metrics of a system, of its targets, or of the consensus regimes, by name."""

    _registered: dict[str, dict[str, MetricEntry]] = field(default_factory=dict)

    def metric(
        self,
        label: str,
        unit: Unit,
        better: Better,
        *,
        name: str = "",
        quoted: str = "",
        subject: str = "",
        undefined: "str | Callable[[Scores], str]" = NOTHING_MEASURED,
        compares: bool = True,
    ) -> Callable[[Compute], Compute]:
        """Register the decorated function as a metric; see `MetricEntry`.

        Args:
            label: Its name in tables.
            unit: Its unit.
            better: Which direction is better.
            name: The metric's name; the function's if not given.
            quoted: Its source, if the label alone doesn't say.
            subject: The key of its reading; the metric's name if not given.
            undefined: The reason where it isn't defined.
            compares: Whether it compares systems.

        Raises:
            ValueError: A metric of that name exists.
        """

        def register(compute: Compute) -> Compute:
            own = name or compute.__name__.removeprefix("_")
            description = " ".join((compute.__doc__ or "").split())
            meaning, _, reading = description.partition(" Reading: ")
            if any(own in known for known in self._registered.values()):
                raise ValueError(f"there are two metrics {own}; each needs a name of its own")
            self._registered.setdefault(compute.__module__, {})[own] = MetricEntry(
                f"{label} ({quoted})" if quoted else label,
                unit,
                better,
                meaning,
                compute,
                {subject or own: reading} if reading else {},
                undefined,
                compares,
            )
            return compute

        return register

    @cached_property
    def _entries(self) -> dict[str, MetricEntry]:
        homes = [import_module(f"prefill_router.evaluation.{home}").__name__ for home in MODULES]
        tables = (self._registered.get(home, {}) for home in homes)
        return {name: entry for table in tables for name, entry in table.items()}

    def __getitem__(self, name: str) -> MetricEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


HEADLINE, TARGET, REGIME = MetricTable(), MetricTable(), MetricTable()
metric, target_metric, regime_metric = HEADLINE.metric, TARGET.metric, REGIME.metric


def definitions(
    *,
    step: float | None,
    axis: Axis,
    max_cost: float | None = None,
    policy: Mapping[str, Any] | None = None,
    check: str = "",
) -> dict[str, str]:
    """The variants used where a metric has several, by subject.

    Args:
        step: Step of the grid of lam that the curve was read on; None for the exact path.
        axis: How cost was normalised.
        max_cost: The largest cost of AIQ, US dollars per query, if it was given.
        policy: The policy's kind and options; the paper's if not given.
        check: The quality check of a cascade, in words.
    """
    points = (
        "every operating point of the exact lambda path"
        if step is None
        else f"the distinct operating points on a grid of lam with the step {step:g}"
    )
    cost = {
        "inverse": "(1/C - 1/C_high) / (1/C_low - 1/C_high)",
        "linear": "(C_high - C) / (C_high - C_low)",
    }[axis]
    largest = "the largest cost of any setting of the compared systems (of its own if alone)"
    ends = largest if max_cost is None else f"{max_cost:g} US dollars per query"
    said = {"kind": "lambda"} if policy is None else policy
    named = ", ".join(f"{name}: {value}" for name, value in said.items())
    return {
        "policy": named + (f"; quality check: {check}" if check else ""),
        "points": points,
        "cost_axis": f"{axis}: {cost}, C the mean observed cost in US dollars",
        "cost_anchors": "lowest and highest mean observed cost of a single target, these queries",
        "accuracy_anchors": "floor: lowest single-target accuracy; ceiling: the oracle's",
        "compared": "router, single targets, mixes and oracle are compared with each other on the "
        "queries where the labels (and costs, where a target has any) of all targets are known; "
        "targets measured on less than a tenth of the labelled queries are left out",
        **{
            subject: text.replace("{max_cost}", ends)
            for table in (HEADLINE, TARGET, REGIME)
            for entry in table.values()
            for subject, text in entry.readings.items()
        },
        "quartiles": "Q1 to Q4 are four equal parts of the range of mean observed cost along the "
        "exact curve",
        "intervals": "95 % percentile bootstrap over queries, all targets of a query together; "
        "anchors, best single target and max-lam point found anew in each resample; the interval "
        "of the calibration error reaches lower by what chance may have added",
    }
