"""Domain shift: what a router loses on kinds of queries that it wasn't fitted on.

The paper's appendix on domain shift. A router trained on some benchmarks or domains is tested on
others. On the same test queries it is compared with a reference that was fitted on all of them. A
shifted router also has fewer train rows, so there is a second reference, trained on equally many
queries. The loss against that one is due to the shift alone.

Everything, including layers and costs, is fitted separately in each arm.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final, get_args

from prefill_router.activations import Activations
from prefill_router.comparison import (
    FitJob,
    RecipeFailure,
    failures,
    fit_jobs,
    warnings,
)
from prefill_router.data import Part, Query, RoutingDataset, Split, split
from prefill_router.engines import Engine
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import (
    HEADLINE,
    Estimate,
    Estimates,
    digits,
    estimates_to_dict,
    interval,
    paired,
    worded,
)
from prefill_router.fitting import FitConfig, Recipe
from prefill_router.plotting import Figure
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import (
    BOLD,
    QUIET,
    STROKES,
    Note,
    Report,
    ReportFigure,
    Row,
    Section,
    Table,
    draw_interval,
    ends,
    estimate_cell,
    legend_below,
    name_rows,
    new_figure,
    significance,
    style,
)
from prefill_router.router import Router
from prefill_router_lab.studies.options import ShiftOptions

Arm = Literal["reference", "shifted", "equal"]
"""Trained on the whole train part; on the shift's part of it; on equally many random queries."""
PRESETS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mmlu-pro-stem": (
        ("biology", "chemistry", "computer science", "engineering", "math", "physics"),
        ("history", "law", "philosophy", "economics", "psychology"),
    )
}
"""Domains trained on and tested on. The paper doesn't list the categories of its STEM, humanities
and social sciences; these follow MMLU's own grouping (Hendrycks et al., 2021), whose fourth group
(business, health, other) is in neither."""
_LEAST = 2


@final
@dataclass(frozen=True)
class Shift:
    """A shift between named benchmarks or domains.

    Attributes:
        train_on: Benchmarks or domains that are trained on.
        test_on: Benchmarks or domains that are tested on.

    Raises:
        ConfigError: One of the two is empty, or they share a name.
    """

    train_on: tuple[str, ...]
    test_on: tuple[str, ...]

    def __post_init__(self) -> None:
        shared = sorted(set(self.train_on) & set(self.test_on))
        if shared or not self.train_on or not self.test_on:
            raise ConfigError(
                f"train on {list(self.train_on)} and test on {list(self.test_on)}: name at least "
                "one of each, and none in both"
            )

    @classmethod
    def preset(cls, name: str) -> "Shift":
        """One of the shifts of the paper.

        Raises:
            ConfigError: There is no preset of this name.
        """
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}; there are {list(PRESETS)}")
        return cls(*PRESETS[name])

    @classmethod
    def hold_out(cls, dataset: RoutingDataset, held_out: Sequence[str]) -> "Shift":
        """Test on these benchmarks or domains and train on all others of the same kind.

        Raises:
            ConfigError: One is unknown, or nothing is left to train on.
        """
        for kind in ("benchmark", "domain"):
            names = sorted({getattr(query, kind) for query in dataset.queries} - {""})
            if set(held_out) <= set(names):
                rest = tuple(name for name in names if name not in held_out)
                if not rest:
                    raise ConfigError(
                        f"{list(held_out)} are all {kind}s of the dataset, so nothing is left "
                        "to train on; hold out fewer"
                    )
                return cls(rest, tuple(held_out))
        raise ConfigError(
            f"the dataset has no benchmarks and no domains {list(held_out)}; "
            f"{_describe_kinds(dataset)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"train_on": list(self.train_on), "test_on": list(self.test_on)}


@final
@dataclass(frozen=True)
class ShiftArms:
    """The splits of a shift; all have the same test part.

    Attributes:
        splits: By arm.
        sizes: Train queries by arm.
        domains: Number of test queries of each benchmark or domain that is tested on.
    """

    splits: Mapping[Arm, Split]
    sizes: Mapping[Arm, int]
    domains: Mapping[str, int]


def arms(dataset: RoutingDataset, split: Split, shift: Shift, *, seed: int = 0) -> ShiftArms:
    """The splits of the three arms.

    A name matches a query if it is its benchmark, its domain or `benchmark/domain`. Queries that
    match names of both sides are only tested on.

    Args:
        dataset: Scored answers.
        split: The whole split; only queries of its test part are tested on.
        shift: The names trained on and tested on.
        seed: Random seed of the draw for the reference of equal size.

    Raises:
        ConfigError: A name is unknown.
        DataError: Too few queries are left to train on, or none to test on.
    """
    test_on, train_on = (_find_members(dataset, names) for names in (shift.test_on, shift.train_on))
    train_on -= test_on
    test = tuple(i for i in split["test"] if i in test_on)
    shifted = _restrict(split, train_on, test)
    if not test or len(shifted["train"]) < _LEAST:
        raise DataError(
            f"only {len(shifted['train'])} queries of the train part are left to train on, and "
            f"{len(test)} of the test part to test on; name larger benchmarks or domains"
        )
    splits: dict[Arm, Split] = {
        "reference": _restrict(split, set(dataset.query_ids), test),
        "shifted": shifted,
        "equal": _draw_as_many(dataset, split, shifted, test, seed),
    }
    counts = Counter(_choose_label(query, shift.test_on) for query in dataset.select(test).queries)
    sizes = {arm: len(arm_split["train"]) for arm, arm_split in splits.items()}
    return ShiftArms(splits, sizes, dict(sorted(counts.items())))


def _restrict(split: Split, members: set[str], test: tuple[str, ...]) -> Split:
    parts: dict[Part, tuple[str, ...]] = {
        part: tuple(i for i in ids if i in members) for part, ids in split.parts.items()
    }
    return Split({**parts, "test": test}, split.seed, split.merged)


def _draw_as_many(
    dataset: RoutingDataset, split: Split, like: Split, test: tuple[str, ...], seed: int
) -> Split:
    """As many train and calibration queries as another split has, drawn from the whole parts."""
    parts: dict[Part, tuple[str, ...]] = {}
    for part, ids in split.parts.items():
        share = len(like[part]) / max(len(ids), 1)
        parts[part] = _draw_share(dataset.select(ids), share, seed) if share < 1 else ids
    return Split({**parts, "test": test}, split.seed, split.merged)


def _draw_share(part: RoutingDataset, share: float, seed: int) -> tuple[str, ...]:
    """A stratified share of the queries; queries with the same prompt stay together."""
    if not share or math.isclose(share, 1):
        return part.query_ids if share else ()
    return split(part, seed=seed, fractions={"train": share, "test": 1 - share})["train"]


def _find_members(dataset: RoutingDataset, names: Sequence[str]) -> set[str]:
    ids_by_name: dict[str, set[str]] = {name: set() for name in names}
    for query in dataset.queries:
        for name in _list_names(query) & set(names):
            ids_by_name[name].add(query.id)
    unknown = [name for name, members in ids_by_name.items() if not members]
    if unknown:
        raise ConfigError(f"no query is of {unknown}; {_describe_kinds(dataset)}")
    return set().union(*ids_by_name.values())


def _list_names(query: Query) -> set[str]:
    return {query.benchmark, query.domain, f"{query.benchmark}/{query.domain}"} - {""}


def _choose_label(query: Query, names: Sequence[str]) -> str:
    return next(name for name in names if name in _list_names(query))


def _describe_kinds(dataset: RoutingDataset) -> str:
    benchmarks = sorted({query.benchmark for query in dataset.queries} - {""})
    domains = sorted({query.domain for query in dataset.queries} - {""})
    return (
        f"it has the benchmarks {_shorten_list(benchmarks)} and the domains "
        f"{_shorten_list(domains)}"
    )


def _shorten_list(names: Sequence[str]) -> str:
    return f"{list(names[:30])}" + (" and others" if len(names) > 30 else "")


ARMS: tuple[Arm, ...] = get_args(Arm)
Number = Literal["argmax_accuracy", "auc_mean", "brier_mean", "max_lam_accuracy"]
NUMBERS: tuple[Number, ...] = get_args(Number)
"""The paper's two metrics, argmax accuracy and macro AUC, and two more."""


@final
@dataclass(frozen=True)
class ShiftResult:
    """One recipe in the three arms, on the same test queries.

    Attributes:
        name: The recipe's name.
        numbers: Metrics by arm, then by name.
        loss: The shifted arm minus the reference, paired.
        loss_of_shift: The shifted arm minus the reference of equal size, paired.
    """

    name: str
    numbers: Mapping[Arm, Mapping[Number, Estimate]]
    loss: Mapping[Number, Estimate]
    loss_of_shift: Mapping[Number, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            **{arm: estimates_to_dict(numbers) for arm, numbers in self.numbers.items()},
            "shifted_minus_reference": estimates_to_dict(self.loss),
            "shifted_minus_equal": estimates_to_dict(self.loss_of_shift),
        }


@final
@dataclass(frozen=True)
class ShiftStudy:
    """The loss of several recipes under a shift.

    Attributes:
        shift: The names trained on and tested on.
        arms: The splits.
        routers: One per recipe that could be fitted in all arms, in the order given.
        failures: The recipes that could not be fitted.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the training and the resamples.
    """

    shift: Shift
    arms: ShiftArms
    routers: tuple[ShiftResult, ...]
    failures: tuple[RecipeFailure, ...]
    resamples: int
    seed: int

    @property
    def queries(self) -> int:
        """The number of test queries."""
        return len(self.arms.splits["reference"]["test"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **self.shift.to_dict(),
            "trained_on": dict(self.arms.sizes),
            "tested_on": dict(self.arms.domains),
            "queries": self.queries,
            "resamples": self.resamples,
            "seed": self.seed,
            "routers": {result.name: result.to_dict() for result in self.routers},
            "failed": {failure.name: failure.why for failure in self.failures},
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per router, arm or difference, and number."""
        rows = []
        for result in self.routers:
            groups = {str(arm): numbers for arm, numbers in result.numbers.items()}
            groups["shifted minus reference"] = result.loss
            groups["shifted minus equal"] = result.loss_of_shift
            rows += [
                {"router": result.name, "what": what, "number": number, **ends(estimate)}
                for what, numbers in groups.items()
                for number, estimate in numbers.items()
            ]
        return rows

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study."""
        figures = [ReportFigure("shift", draw(self), self.rows(), _CAPTION)] if self.routers else []
        return Report(
            name="shift",
            title=title,
            summary=summary(self),
            facts={**facts, **_list_facts(self)},
            parts=[
                *figures,
                *(
                    Section(
                        head, [Note(f"{HEADLINE[n].meaning} {BOLD}"), _tabulate_metric(self, n)]
                    )
                    for head, n in _SECTIONS.items()
                ),
                Section("What the columns mean", [_MEANINGS, *failures(self.failures)]),
            ],
            numbers=self.to_dict(),
            tables={"shift": self.rows(), "paper": paper_rows(self)},
            short=_tabulate_summary(self),
            warnings=warnings(self.failures, end=","),
        )


def shift_study(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    split: Split,
    shift: Shift,
    options: ShiftOptions | None = None,
    *,
    folder: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> ShiftStudy:
    """Fit every recipe in the three arms: the shifted one and two references.

    Args:
        dataset: Scored answers.
        recipes: The recipes by name.
        states: Hidden states for their features, see `fitting.gather`.
        split: The whole split; only queries of its test part are tested on.
        shift: The names trained on and tested on.
        options: The seed of the training, the draw of the equal reference and the resamples, which
            are the same for all arms.
        folder: Keeps each router once it is fitted, so that interrupted work can resume.
        engine: Where the fits run; in this process if not given.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: There is no recipe, or the dataset lacks a name of the shift.
        DataError: Too few queries are left, or no test query has a label.
    """
    if not recipes:
        raise ConfigError("there is no router; name at least one")
    options, bar = options or ShiftOptions(), progress or SilentProgress()
    parts = arms(dataset, split, shift, seed=options.seed)
    results, failures = list[ShiftResult](), list[RecipeFailure]()
    routers_by_arm: dict[Arm, dict[str, Router]] = {arm: {} for arm in ARMS}
    pairs = [(arm, name) for arm in ARMS for name in recipes]
    jobs = [
        FitJob(
            name,
            FitConfig(seed=options.seed, recipe=recipes[name]),
            parts.splits[arm],
            None if folder is None else folder / arm,
        )
        for arm, name in pairs
    ]
    fits = fit_jobs(dataset, states, jobs, finish=lambda _, fit: fit, engine=engine, progress=bar)
    for (arm, name), fit in zip(pairs, fits, strict=True):
        if isinstance(fit, RecipeFailure):
            failures.append(RecipeFailure(name, f"{arm}: {fit.why}"))
        else:
            routers_by_arm[arm][name] = fit.router
    test = dataset.select(parts.splits["reference"]["test"])
    for name in recipes:
        if all(name in routers_by_arm[arm] for arm in ARMS):
            routers = {arm: routers_by_arm[arm][name] for arm in ARMS}
            results.append(_compare_arms(name, routers, test, states, options, bar))
    return ShiftStudy(
        shift, parts, tuple(results), tuple(failures), options.resamples, options.seed
    )


def _compare_arms(
    name: str,
    routers: Mapping[Arm, Router],
    test: RoutingDataset,
    states: Sequence[Activations],
    options: ShiftOptions,
    progress: Progress,
) -> ShiftResult:
    systems = {
        str(arm): (router.predict(test, stores=states), router.policy)
        for arm, router in routers.items()
    }
    comparison = paired(
        systems,
        test,
        reference="shifted",
        resamples=options.resamples,
        seed=options.seed,
        progress=progress,
    )
    return ShiftResult(
        name,
        {arm: _select_numbers(comparison.headline[arm]) for arm in ARMS},
        {number: _negate(comparison.difference["reference"][number]) for number in NUMBERS},
        {number: _negate(comparison.difference["equal"][number]) for number in NUMBERS},
    )


def _select_numbers(numbers: Estimates) -> dict[Number, Estimate]:
    return {number: numbers[number] for number in NUMBERS}


def _negate(estimate: Estimate) -> Estimate:
    """The difference with the opposite sign."""
    value, lower, upper = (
        0.0 - end for end in (estimate.value, estimate.upper, estimate.lower)
    )  # not -0.0
    return Estimate(value, lower, upper, estimate.undefined, estimate.reason)


ARM_NAMES: Mapping[Arm, str] = {
    "reference": "trained on all",
    "shifted": "trained elsewhere",
    "equal": "trained on all, as few queries",
}


_MEANINGS = {
    "trained on all": "The in-distribution reference: trained on the whole train part, which has "
    "queries of the tested kinds.",
    "trained elsewhere": "Trained only on the kinds named above, none of which are tested; layers, "
    "PCA, probabilities and costs were all fitted again.",
    "trained on all, as few queries": "A second reference, trained on a stratified sample of the "
    "train part as large as that of the router trained elsewhere: the loss against this one is due "
    "to the shift, and not to having fewer queries.",
    "difference": "Percentage points for accuracy; paired, on the same resampled test queries.",
}
_CAPTION = (
    "The same routers on the same test queries, trained on everything, on as few queries of "
    "everything, and only elsewhere. Lines are 95 % intervals over test queries; the paired "
    "differences below are more informative than their overlap."
)
_DRAWN: tuple[Number, ...] = ("argmax_accuracy", "auc_mean")
_ORDER: tuple[Arm, ...] = ("reference", "equal", "shifted")
_SECTIONS: Mapping[str, Number] = {
    "Accuracy at lam = 1": "argmax_accuracy",
    "Macro AUC over targets": "auc_mean",
    "Brier score": "brier_mean",
    "Best accuracy at any lam": "max_lam_accuracy",
}


def summary(study: ShiftStudy) -> list[str]:
    """The result in a few sentences."""
    if not study.routers:
        return ["No router could be fitted in all three ways."]
    ordered = sorted(study.routers, key=lambda result: -result.loss["argmax_accuracy"].value)
    best, worst = ordered[0], ordered[-1]
    lines = [
        f"Tested on {study.queries:,} queries of {_join_names(study.shift.test_on)}. "
        + _word_loss(best)
        + ("" if best is worst else " " + _word_loss(worst))
    ]
    hurt = [o.name for o in study.routers if o.loss_of_shift["argmax_accuracy"].upper < 0]
    if study.resamples:
        lines.append(
            "Significant loss due to the shift itself, against a reference with as few training "
            f"queries, at lam = 1: {', '.join(hurt) if hurt else 'none'}."
        )
    blind = [o.name for o in study.routers if not o.numbers["shifted"]["auc_mean"].lower > 0.5]
    if blind and study.resamples:
        lines.append(
            "Trained elsewhere, these no longer significantly predict which queries a target gets "
            f"right (macro AUC not above 0.5): {', '.join(blind)}."
        )
    return lines


def _tabulate_metric(study: ShiftStudy, number: Number) -> Table:
    """A table of one metric in the three arms and their differences, a row per router."""
    entry = HEADLINE[number]
    unit = "points" if entry.unit == "share" else entry.unit
    head = [
        "Router",
        *(ARM_NAMES[a] for a in ARMS),
        "elsewhere minus all",
        "elsewhere minus as few",
    ]
    rows: list[Row] = [
        [
            result.name,
            *(estimate_cell(result.numbers[arm][number], entry.unit) for arm in ARMS),
            *(
                estimate_cell(value, unit, signed=True, compared=significance(value, entry.better))
                for value in (result.loss[number], result.loss_of_shift[number])
            ),
        ]
        for result in study.routers
    ]
    return Table(head, rows)


def _tabulate_summary(study: ShiftStudy) -> Table:
    rows = []
    for result in study.routers:
        accuracy = {arm: 100 * v["argmax_accuracy"].value for arm, v in result.numbers.items()}
        losses = [100 * d["argmax_accuracy"].value for d in (result.loss, result.loss_of_shift)]
        cells = [
            digits(accuracy["shifted"], ".2f"),
            digits(accuracy["reference"], ".2f"),
            digits(losses[0], "+.2f"),
            digits(accuracy["equal"], ".2f"),
            digits(losses[1], "+.2f"),
            digits(result.numbers["shifted"]["auc_mean"].value, ".4f"),
        ]
        rows.append([result.name, *cells])
    head = ["router", "elsewhere", "on all", "diff.", "as few", "diff.", "macro AUC"]
    return Table(head, rows)


def paper_rows(study: ShiftStudy) -> list[dict[str, object]]:
    """The columns of the paper's two tables: percentages, and differences in points."""
    return [
        {
            "router": result.name,
            "shifted": 100 * result.numbers["shifted"]["argmax_accuracy"].value,
            "iid": 100 * result.numbers["reference"]["argmax_accuracy"].value,
            "delta": 100 * result.loss["argmax_accuracy"].value,
            "delta_lower": 100 * result.loss["argmax_accuracy"].lower,
            "delta_upper": 100 * result.loss["argmax_accuracy"].upper,
            "shifted_macro_auc": result.numbers["shifted"]["auc_mean"].value,
        }
        for result in study.routers
    ]


def draw(study: ShiftStudy) -> Figure:
    """Draw accuracy and AUC of every router in the three arms."""
    ordered = study.routers[::-1]
    figure = new_figure(10.0, 1.7 + 0.5 * len(ordered))
    panels = figure.subplots(1, len(_DRAWN), sharey=True, squeeze=False)[0]
    for axes, number in zip(panels, _DRAWN, strict=True):
        scale = 100 if HEADLINE[number].unit == "share" else 1
        for row, result in enumerate(ordered):
            for place, arm in enumerate(_ORDER):
                colour, _, marker = STROKES[place]
                draw_interval(
                    axes,
                    row + 0.2 * (1 - place),
                    result.numbers[arm][number],
                    colour,
                    scale=scale,
                    marker=marker,
                    label="" if row else ARM_NAMES[arm],
                )
        unit = " (%)" if scale == 100 else ""
        style(axes, title=HEADLINE[number].label + unit)
    panels[1].axvline(0.5, color=QUIET, lw=0.9, ls=":")
    name_rows(panels[0], [result.name for result in ordered])
    legend_below(figure, columns=3)
    return figure


def _word_loss(result: ShiftResult) -> str:
    loss = result.loss["argmax_accuracy"]
    spread = interval(loss, "points")
    if not math.isfinite(loss.value):
        why = result.numbers["shifted"]["argmax_accuracy"].reason or loss.reason
        return f"The loss of {result.name} isn't known: {why or 'an accuracy is not defined'}."
    return (
        f"{result.name} trained elsewhere answers "
        f"{worded(result.numbers['shifted']['argmax_accuracy'].value, 'share')} of them correctly, "
        f"{worded(loss.value, 'points')} compared with training on all kinds"
        + (f" ({spread})." if spread else ".")
    )


def _list_facts(study: ShiftStudy) -> dict[str, str]:
    sizes = study.arms.sizes
    tested_on = ", ".join(f"{name} ({count:,})" for name, count in study.arms.domains.items())
    return {
        "trained elsewhere": f"{_join_names(study.shift.train_on)}; {sizes['shifted']:,} queries",
        "tested on": tested_on,
        "references": f"{sizes['reference']:,} queries, and {sizes['equal']:,} drawn of them",
        "intervals": f"95 %, {study.resamples:,} bootstrap resamples of the test queries",
    }


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
