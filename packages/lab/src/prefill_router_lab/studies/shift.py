"""Domain shift: what a router loses on kinds of queries that it wasn't trained on.

The paper's appendix on domain shift: a router trained on some benchmarks or domains is tested on
others and compared with a reference that was trained on all of them, on the same test queries. A
shifted router also has less training data, so there is a second reference, trained on equally many
queries; the loss against that one is due to the shift alone.

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
        both = sorted(set(self.train_on) & set(self.test_on))
        if both or not self.train_on or not self.test_on:
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
    def hold_out(cls, dataset: RoutingDataset, held: Sequence[str]) -> "Shift":
        """Test on these benchmarks or domains and train on all others of the same kind.

        Raises:
            ConfigError: One is unknown, or nothing is left to train on.
        """
        for kind in ("benchmark", "domain"):
            known = sorted({getattr(query, kind) for query in dataset.queries} - {""})
            if set(held) <= set(known):
                rest = tuple(name for name in known if name not in held)
                if not rest:
                    raise ConfigError(
                        f"{list(held)} is every {kind} there is; nothing is left to train on"
                    )
                return cls(rest, tuple(held))
        raise ConfigError(
            f"{list(held)} are no benchmarks, and no domains, of the dataset; {_known(dataset)}"
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


def arms(dataset: RoutingDataset, drawn: Split, shift: Shift, *, seed: int = 0) -> ShiftArms:
    """The splits of the three arms.

    A name matches a query if it is its benchmark, its domain or `benchmark/domain`. Queries that
    match names of both sides are only tested on.

    Args:
        dataset: Scored answers.
        drawn: The whole split; only queries of its test part are tested on.
        shift: The names trained on and tested on.
        seed: Random seed of the draw for the reference of equal size.

    Raises:
        ConfigError: A name is unknown.
        DataError: Too few queries are left to train on, or none to test on.
    """
    test_on, train_on = (_members(dataset, names) for names in (shift.test_on, shift.train_on))
    train_on -= test_on
    test = tuple(i for i in drawn["test"] if i in test_on)
    shifted = _only(drawn, train_on, test)
    if not test or len(shifted["train"]) < _LEAST:
        raise DataError(
            f"{len(shifted['train'])} queries of the train part are left to train on and "
            f"{len(test)} of the test part to test on; name larger benchmarks or domains"
        )
    splits: dict[Arm, Split] = {
        "reference": _only(drawn, set(dataset.query_ids), test),
        "shifted": shifted,
        "equal": _thinned(dataset, drawn, shifted, test, seed),
    }
    named = Counter(_label(query, shift.test_on) for query in dataset.select(test).queries)
    sizes = {arm: len(one["train"]) for arm, one in splits.items()}
    return ShiftArms(splits, sizes, dict(sorted(named.items())))


def _only(drawn: Split, members: set[str], test: tuple[str, ...]) -> Split:
    parts: dict[Part, tuple[str, ...]] = {
        part: tuple(i for i in ids if i in members) for part, ids in drawn.parts.items()
    }
    return Split({**parts, "test": test}, drawn.seed, drawn.merged)


def _thinned(
    dataset: RoutingDataset, drawn: Split, like: Split, test: tuple[str, ...], seed: int
) -> Split:
    """As many train and calibration queries as another split has, drawn from the whole parts."""
    parts: dict[Part, tuple[str, ...]] = {}
    for part, ids in drawn.parts.items():
        share = len(like[part]) / max(len(ids), 1)
        parts[part] = _some(dataset.select(ids), share, seed) if share < 1 else ids
    return Split({**parts, "test": test}, drawn.seed, drawn.merged)


def _some(part: RoutingDataset, share: float, seed: int) -> tuple[str, ...]:
    """A stratified share of the queries; queries with the same prompt stay together."""
    if not share or math.isclose(share, 1):
        return part.query_ids if share else ()
    return split(part, seed=seed, fractions={"train": share, "test": 1 - share})["train"]


def _members(dataset: RoutingDataset, names: Sequence[str]) -> set[str]:
    found: dict[str, set[str]] = {name: set() for name in names}
    for query in dataset.queries:
        for name in _names(query) & set(names):
            found[name].add(query.id)
    unknown = [name for name, members in found.items() if not members]
    if unknown:
        raise ConfigError(f"no query is of {unknown}; {_known(dataset)}")
    return set().union(*found.values())


def _names(query: Query) -> set[str]:
    return {query.benchmark, query.domain, f"{query.benchmark}/{query.domain}"} - {""}


def _label(query: Query, wanted: Sequence[str]) -> str:
    return next(name for name in wanted if name in _names(query))


def _known(dataset: RoutingDataset) -> str:
    benchmarks = sorted({query.benchmark for query in dataset.queries} - {""})
    domains = sorted({query.domain for query in dataset.queries} - {""})
    return f"it has the benchmarks {_few(benchmarks)} and the domains {_few(domains)}"


def _few(names: Sequence[str]) -> str:
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
        failed: The recipes that could not be fitted.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the training and the resamples.
    """

    shift: Shift
    arms: ShiftArms
    routers: tuple[ShiftResult, ...]
    failed: tuple[RecipeFailure, ...]
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
            "routers": {one.name: one.to_dict() for one in self.routers},
            "failed": {one.name: one.why for one in self.failed},
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per router, arm or difference, and number."""
        rows = []
        for one in self.routers:
            groups = {str(arm): numbers for arm, numbers in one.numbers.items()}
            groups["shifted minus reference"] = one.loss
            groups["shifted minus equal"] = one.loss_of_shift
            rows += [
                {"router": one.name, "what": what, "number": number, **ends(estimate)}
                for what, numbers in groups.items()
                for number, estimate in numbers.items()
            ]
        return rows

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study."""
        drawn = [ReportFigure("shift", draw(self), self.rows(), _CAPTION)] if self.routers else []
        return Report(
            name="shift",
            title=title,
            summary=summary(self),
            facts={**facts, **_kinds(self)},
            parts=[
                *drawn,
                *(
                    Section(head, [Note(f"{HEADLINE[n].meaning} {BOLD}"), _metric_table(self, n)])
                    for head, n in _SECTIONS.items()
                ),
                Section("What the columns mean", [_MEANINGS, *failures(self.failed)]),
            ],
            numbers=self.to_dict(),
            tables={"shift": self.rows(), "paper": paper_rows(self)},
            short=_short(self),
            warnings=warnings(self.failed, end=","),
        )


def shift_study(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    drawn: Split,
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
        drawn: The whole split; only queries of its test part are tested on.
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
    options, shown = options or ShiftOptions(), progress or SilentProgress()
    parts = arms(dataset, drawn, shift, seed=options.seed)
    found, failed = list[ShiftResult](), list[RecipeFailure]()
    fitted: dict[Arm, dict[str, Router]] = {arm: {} for arm in ARMS}
    asked = [(arm, name) for arm in ARMS for name in recipes]
    jobs = [
        FitJob(
            name,
            FitConfig(seed=options.seed, recipe=recipes[name]),
            parts.splits[arm],
            None if folder is None else folder / arm,
        )
        for arm, name in asked
    ]
    made = fit_jobs(dataset, states, jobs, finish=lambda _, one: one, engine=engine, progress=shown)
    for (arm, name), one in zip(asked, made, strict=True):
        if isinstance(one, RecipeFailure):
            failed.append(RecipeFailure(name, f"{arm}: {one.why}"))
        else:
            fitted[arm][name] = one.router
    test = dataset.select(parts.splits["reference"]["test"])
    for name in recipes:
        if all(name in fitted[arm] for arm in ARMS):
            of_arms = {arm: fitted[arm][name] for arm in ARMS}
            found.append(_judged(name, of_arms, test, states, options, shown))
    return ShiftStudy(shift, parts, tuple(found), tuple(failed), options.resamples, options.seed)


def _judged(
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
    both = paired(
        systems,
        test,
        reference="shifted",
        resamples=options.resamples,
        seed=options.seed,
        progress=progress,
    )
    return ShiftResult(
        name,
        {arm: _kept(both.headline[arm]) for arm in ARMS},
        {number: _negated(both.difference["reference"][number]) for number in NUMBERS},
        {number: _negated(both.difference["equal"][number]) for number in NUMBERS},
    )


def _kept(numbers: Estimates) -> dict[Number, Estimate]:
    return {number: numbers[number] for number in NUMBERS}


def _negated(one: Estimate) -> Estimate:
    """The difference with the opposite sign."""
    value, lower, upper = (0.0 - end for end in (one.value, one.upper, one.lower))  # not -0.0
    return Estimate(value, lower, upper, one.undefined, one.reason)


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
    ordered = sorted(study.routers, key=lambda one: -one.loss["argmax_accuracy"].value)
    best, worst = ordered[0], ordered[-1]
    lines = [
        f"Tested on {study.queries:,} queries of {_listed(study.shift.test_on)}. "
        + _lost(best)
        + ("" if best is worst else " " + _lost(worst))
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


def _metric_table(study: ShiftStudy, number: Number) -> Table:
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
            one.name,
            *(estimate_cell(one.numbers[arm][number], entry.unit) for arm in ARMS),
            *(
                estimate_cell(value, unit, signed=True, compared=significance(value, entry.better))
                for value in (one.loss[number], one.loss_of_shift[number])
            ),
        ]
        for one in study.routers
    ]
    return Table(head, rows)


def _short(study: ShiftStudy) -> Table:
    rows = []
    for one in study.routers:
        accuracy = {arm: 100 * v["argmax_accuracy"].value for arm, v in one.numbers.items()}
        losses = [100 * d["argmax_accuracy"].value for d in (one.loss, one.loss_of_shift)]
        cells = [
            digits(accuracy["shifted"], ".2f"),
            digits(accuracy["reference"], ".2f"),
            digits(losses[0], "+.2f"),
            digits(accuracy["equal"], ".2f"),
            digits(losses[1], "+.2f"),
            digits(one.numbers["shifted"]["auc_mean"].value, ".4f"),
        ]
        rows.append([one.name, *cells])
    head = ["router", "elsewhere", "on all", "diff.", "as few", "diff.", "macro AUC"]
    return Table(head, rows)


def paper_rows(study: ShiftStudy) -> list[dict[str, object]]:
    """The columns of the paper's two tables: percentages, and differences in points."""
    return [
        {
            "router": one.name,
            "shifted": 100 * one.numbers["shifted"]["argmax_accuracy"].value,
            "iid": 100 * one.numbers["reference"]["argmax_accuracy"].value,
            "delta": 100 * one.loss["argmax_accuracy"].value,
            "delta_lower": 100 * one.loss["argmax_accuracy"].lower,
            "delta_upper": 100 * one.loss["argmax_accuracy"].upper,
            "shifted_macro_auc": one.numbers["shifted"]["auc_mean"].value,
        }
        for one in study.routers
    ]


def draw(study: ShiftStudy) -> Figure:
    """Draw accuracy and AUC of every router in the three arms."""
    ordered = study.routers[::-1]
    figure = new_figure(10.0, 1.7 + 0.5 * len(ordered))
    panels = figure.subplots(1, len(_DRAWN), sharey=True, squeeze=False)[0]
    for axes, number in zip(panels, _DRAWN, strict=True):
        scale = 100 if HEADLINE[number].unit == "share" else 1
        for row, one in enumerate(ordered):
            for place, arm in enumerate(_ORDER):
                colour, _, marker = STROKES[place]
                draw_interval(
                    axes,
                    row + 0.2 * (1 - place),
                    one.numbers[arm][number],
                    colour,
                    scale=scale,
                    marker=marker,
                    label="" if row else ARM_NAMES[arm],
                )
        unit = " (%)" if scale == 100 else ""
        style(axes, title=HEADLINE[number].label + unit)
    panels[1].axvline(0.5, color=QUIET, lw=0.9, ls=":")
    name_rows(panels[0], [one.name for one in ordered])
    legend_below(figure, columns=3)
    return figure


def _lost(one: ShiftResult) -> str:
    loss = one.loss["argmax_accuracy"]
    spread = interval(loss, "points")
    if not math.isfinite(loss.value):
        why = one.numbers["shifted"]["argmax_accuracy"].reason or loss.reason
        return f"The loss of {one.name} isn't known: {why or 'an accuracy is not defined'}."
    return (
        f"{one.name} trained elsewhere answers "
        f"{worded(one.numbers['shifted']['argmax_accuracy'].value, 'share')} of them correctly, "
        f"{worded(loss.value, 'points')} compared with training on all kinds"
        + (f" ({spread})." if spread else ".")
    )


def _kinds(study: ShiftStudy) -> dict[str, str]:
    sizes = study.arms.sizes
    tested = ", ".join(f"{name} ({count:,})" for name, count in study.arms.domains.items())
    return {
        "trained elsewhere": f"{_listed(study.shift.train_on)}; {sizes['shifted']:,} queries",
        "tested on": tested,
        "references": f"{sizes['reference']:,} queries, and {sizes['equal']:,} drawn of them",
        "intervals": f"95 %, {study.resamples:,} bootstrap resamples of the test queries",
    }


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
