"""A comparison on disk.

compare.json    the plan, and every metric of every router with its interval
routers.csv     the headline metrics, a row per router
paired.csv      each router minus the reference, and minus the constant predictor
targets.csv     AUC and Brier score of every router and target
figures/        curves and intervals: .png, .svg, .csv
index.html      one page with all of it; works offline
routers/        every router, ready to load
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prefill_router.comparison.comparison import (
    ComparedRouter,
    ComparisonResult,
    beats,
    by_number,
)
from prefill_router.comparison.recipe_fits import failures, list_left_out
from prefill_router.evaluation import (
    HEADLINE,
    TARGET,
    Estimate,
    Estimates,
    MetricEntry,
    estimates_to_dict,
    plain,
    worded,
)
from prefill_router.predictors import PREDICTORS
from prefill_router.reporting import (
    BOLD,
    CHANCE_AUC,
    UNDERLINED,
    Cell,
    Note,
    Part,
    Report,
    Row,
    Rows,
    Section,
    Significance,
    Table,
    ends,
    estimate_cell,
    flat,
    heading,
    significance,
    write_report_files,
)

ONE_BY_ONE = "each by itself, without a correction for how many are compared"
"""How differences are tested, in words."""
STUDY = "comparison"
"""The name of the study in `study.json` (`reporting.mark`)."""


def write(result: ComparisonResult, folder: Path, *, title: str, facts: Mapping[str, str]) -> None:
    """Write the report, each file whole or not at all.

    Args:
        result: The reported comparison.
        folder: The folder to write.
        title: Title of the page.
        facts: Facts about the data, by name.
    """
    report = Report(
        name="compare",
        title=title,
        summary=verdict(result),
        facts=facts,
        parts=page_parts(result),
        numbers=to_dict(result),
        tables=tables(result),
    )
    write_report_files(report, folder)


def to_dict(result: ComparisonResult) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "reference": result.plan.reference,
        "seed": result.plan.seed,
        "encoder_prices": dict(result.plan.prices),
        "routers": {router.name: _router_to_dict(router) for router in result.routers},
        "failed": {failure.name: failure.why for failure in result.not_fitted},
        "left_out": {
            failure.name: f"pip install {failure.requirement}" for failure in result.left_out
        },
    }


def _router_to_dict(router: ComparedRouter) -> dict[str, Any]:
    return {
        "recipe": router.fit.recipe.to_dict(),
        "seconds": plain(router.fit.seconds),
        "notes": list(router.fit.router.record.notes),
        "evaluation": {**router.evaluation.to_dict(), **estimates_to_dict(router.headline)},
        "minus_reference": estimates_to_dict(router.against),
        "minus_constant": estimates_to_dict(router.over_constant),
    }


def tables(result: ComparisonResult) -> dict[str, Rows]:
    """The rows of the report's tables by name."""
    routers, differences, targets = [], [], []
    for router in result.routers:
        own = {"router": router.name}
        gains = {f"gain_over_{rule}": gain for rule, gain in gains_of(router).items()}
        routers.append(
            {**own, "seconds": router.fit.seconds, **flat(router.headline), **flat(gains)}
        )
        for minus, estimates in (
            ("reference", router.against),
            ("constant", router.over_constant),
        ):
            for name, difference in estimates.items():
                row = {**own, "minus": minus, "number": name, **ends(difference, name="difference")}
                differences.append(
                    {**row, "significant": difference.lower > 0 or difference.upper < 0}
                )
        for target, values in router.evaluation.per_target.items():
            for name in ("auc", "brier"):
                row = {**own, "target": target, "number": name}
                targets.append({**row, **ends(values[name])})
    return {"routers": routers, "paired": differences, "targets": targets}


MAIN = (
    "auc_mean",
    "choice_auc",
    "choice_auc_best",
    "brier_mean",
    "argmax_accuracy",
    "chosen_accuracy",
    "chosen_gain",
    "savings",
    "savings_gain",
    "max_lam_accuracy",
    "accuracy_gain",
    "headroom_captured",
    "cost_savings",
    "p_auccc",
    "mdp_auccc",
    "oracle_distance",
)
"""The metrics of the first table: ours, and those of the paper's tables."""
SAME_FOR_ALL = (
    "best_single_accuracy",
    "oracle_accuracy",
    "oracle_held_out",
    "model_only_p_auccc",
    "model_only_oracle_distance",
    "solvable_share",
)
"""Metrics of the targets, which don't depend on the router."""
_EDGE = 3
_BASELINES = (
    "Baselines are implementations of this package, not their authors' code. A learned cascade "
    "(FrugalGPT) reads no text of an answer, since datasets keep none: its scorer uses the "
    "answer's length and the router's prediction. The guides on how each predictor works and on "
    "policies list the other differences to each paper."
)


_RULES = (
    "Each router at its own setting, and on average over budgets of 20 to 70 % of the best "
    "target's price: its accuracy minus that of the best fixed mix, and minus that of price alone, "
    "for the same money. Price alone knows what the router predicts that each answer will cost and "
    "how often each target was right on train rows. A router that doesn't beat it gains nothing by "
    "reading the requests."
)


def page_parts(result: ComparisonResult) -> list[Part]:
    """The parts of the page below the verdict."""
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.comparison.figures import curves, intervals

    others = [n for n in HEADLINE if n not in (*MAIN, *SAME_FOR_ALL) and _is_defined(result, n)]
    reference = result.plan.reference
    reading = (
        "↑ higher is better, ↓ lower is better. The small print is the 95 % interval over "
        f"resampled queries. {BOLD} Here and below the reference is {reference}."
    )
    definitions = result.routers[0].evaluation.definitions
    return [
        Section("The routers", [Note(reading), _tabulate_numbers(result, MAIN)]),
        Section("Accuracy and cost", [curves(result)]),
        Section("Beside rules that read no request", [Note(_RULES), _tabulate_gains(result)]),
        Section("Uncertainty", [intervals(result)]),
        Section(f"Differences from {reference}", [_tabulate_differences(result)]),
        Section("Better than constant predictions?", _describe_over_constant(result)),
        Section("Each target: AUC ↑", _describe_per_target(result, "auc")),
        Section("Each target: Brier score ↓", _describe_per_target(result, "brier")),
        Section(
            "Best and worst", [_tabulate_extremes(result, n) for n in ("auc_mean", "brier_mean")]
        ),
        Section("Metrics of other benchmarks", [_tabulate_numbers(result, others)]),
        Section("The targets themselves", [_tabulate_targets(result)]),
        Section(
            "How each router is made",
            [
                Note(_BASELINES),
                _tabulate_recipes(result),
                *failures(result.not_fitted),
                *(f"{line[0].upper()}{line[1:]}." for line in list_left_out(result.left_out)),
            ],
        ),
        Section(
            "What the numbers mean",
            [{HEADLINE[name].label: HEADLINE[name].meaning for name in (*MAIN, *others)}],
        ),
        # Only definitions shared by all routers; each router's policy is in the table of recipes.
        Section(
            "Definitions used", [{n: text for n, text in definitions.items() if n != "policy"}]
        ),
    ]


def verdict(result: ComparisonResult) -> list[str]:
    """The result in a few sentences."""
    first = result.routers[0]
    single, oracle = (
        worded(first.headline[name].value, "share")
        for name in ("best_single_accuracy", "oracle_accuracy")
    )
    overview = (
        f"{len(result.routers)} routers were fitted on the same queries and judged on "
        f"{first.evaluation.queries:,} others.",
        _word_best(
            result,
            "auc_mean",
            ability="predicts whether a target will be right",
            label="mean AUC",
            otherwise="The best predictor isn't known",
        ),
        _word_best(
            result,
            "choice_auc",
            ability="predicts which of two targets will be",
            label="choice AUC",
            otherwise="The best at choosing between two targets isn't known",
        ),
        _choose_sentence(
            first.headline["best_single_accuracy"],
            f"The best single target has an accuracy of {single}, a perfect router of {oracle}.",
            "The accuracy of the best single target isn't known",
        ),
    )
    better = [
        router.name
        for router in result.routers
        if significance_of(router.against, "auc_mean") == "better"
    ]
    return [
        *_word_verdicts(result),
        " ".join(overview),
        f"Significantly better than the reference, {result.plan.reference}, in mean AUC: "
        f"{', '.join(better) or 'none'} ({ONE_BY_ONE}).",
    ]


def _word_best(
    result: ComparisonResult, number: str, *, ability: str, label: str, otherwise: str
) -> str:
    """Which router has the highest AUC of a kind, or that none is above chance."""
    best = by_number(result.routers, number)[0]
    estimate = best.headline[number]
    value = worded(estimate.value, "number")
    text = f"{best.name} best {ability} ({label} {value})."
    if not estimate.value > CHANCE_AUC:
        text = (
            f"None {ability}: the {label} of all is at most one half, which chance has ({value})."
        )
    return _choose_sentence(estimate, text, otherwise)


def _choose_sentence(estimate: Estimate, text: str, otherwise: str) -> str:
    """The sentence `text`, or `otherwise` with the reason where its number isn't defined."""
    return text if estimate.reason == "" else f"{otherwise}: {estimate.reason}."


def _word_verdicts(result: ComparisonResult) -> list[str]:
    """The routers by their verdicts."""
    names: dict[str, list[str]] = {}
    for router in result.routers:
        if router.evaluation.verdict is not None:
            names.setdefault(router.evaluation.verdict.word, []).append(router.name)
    return [
        f"{word.capitalize()}, against the best fixed mix of targets at equal cost: "
        f"{', '.join(names[word])}."
        for word in ("worth it", "can't tell", "not worth it")
        if word in names
    ]


def significance_of(against: Estimates, name: str) -> Significance:
    """Whether a router is better or worse than the reference; empty for the reference itself."""
    return significance(against[name], HEADLINE[name].better) if name in against else ""


def _tabulate_numbers(result: ComparisonResult, names: Sequence[str]) -> Table:
    """A table of headline metrics, a row per router, the best AUC first."""
    rows: list[Row] = [
        [
            router.name,
            *(
                estimate_cell(
                    router.headline[n],
                    HEADLINE[n].unit,
                    compared=significance_of(router.against, n),
                )
                for n in names
            ),
        ]
        for router in by_number(result.routers, "auc_mean")
    ]
    return Table(["Router", *(_make_heading(HEADLINE[name]) for name in names)], rows)


def gains_of(router: ComparedRouter) -> dict[str, Estimate]:
    """A router's gains at its setting over the best fixed mix and over price alone."""
    ruling = router.evaluation.verdict
    nothing = Estimate(np.nan, np.nan, np.nan, reason="the router has no references")
    if ruling is None:
        return {"mix": nothing, "price": nothing}
    point = ruling.setting
    free = replace(nothing, reason="no cost is known")
    return {"mix": point.mix.gain, "price": free if point.price is None else point.price.gain}


def _tabulate_gains(result: ComparisonResult) -> Table:
    """A table of the gains over both references, the best AUC first."""
    rows: list[Row] = []
    for router in by_number(result.routers, "auc_mean"):
        ruling = router.evaluation.verdict
        budgets = {} if ruling is None else ruling.budgets
        gains = [
            *gains_of(router).values(),
            *(budgets[n].gain for n in _RULE_NAMES if n in budgets),
        ]
        cells = [estimate_cell(gain, "points", signed=True) for gain in gains]
        cells += [Cell("")] * (2 * len(_RULE_NAMES) - len(cells))
        word = "" if ruling is None else f"{ruling.word}, at lam {ruling.lam:.3g}"
        rows.append([Cell(router.name, note=word), *cells])
    head = [
        f"{where}, over {rule}" for where in ("Setting", "Budgets") for rule in _RULE_NAMES.values()
    ]
    return Table(["Router", *head], rows)


_RULE_NAMES = {"mix": "the best mix", "price": "price alone"}


def _tabulate_differences(result: ComparisonResult) -> Table:
    """A table of the paired differences to the reference."""

    def cell(against: Estimates, name: str) -> Cell:
        unit = "points" if HEADLINE[name].unit == "share" else HEADLINE[name].unit
        return estimate_cell(
            against[name], unit, signed=True, compared=significance_of(against, name)
        )

    rows: list[Row] = [
        [router.name, *(cell(router.against, name) for name in MAIN)]
        for router in by_number(result.routers, "auc_mean")
        if router.name != result.plan.reference
    ]
    head = ["Router", *(_make_heading(HEADLINE[name]) for name in MAIN)]
    return Table(head, rows, otherwise="There is no other router.")


def _describe_over_constant(result: ComparisonResult) -> list[Part]:
    names = result.beaten_by_constant
    text = (
        "Every router is better than always predicting each target's share of right answers, in "
        f"AUC and in Brier score. The intervals exclude 0 ({ONE_BY_ONE})."
        if not names
        else "Not significantly better than always predicting each target's share of right "
        f"answers, in AUC or in Brier score ({ONE_BY_ONE}): {', '.join(names)}."
    )
    rows = [
        [
            router.name,
            estimate_cell(router.over_constant["auc_mean"], "number", signed=True),
            estimate_cell(router.over_constant["brier_mean"], "number", signed=True),
            "yes" if beats(router.over_constant) else "no",
        ]
        for router in by_number(result.routers, "auc_mean")
    ]
    head = ["Router", "AUC over 0.5", "Brier score minus the constant's", "significantly better"]
    return [text, Table(head, rows)]


def _describe_per_target(result: ComparisonResult, name: str) -> list[Part]:
    """A table of one metric of every target, a column per router."""
    best_first = by_number(result.routers, "auc_mean")
    better = max if TARGET[name].better == "higher" else min
    rows: list[Row] = []
    for target in best_first[0].evaluation.targets:
        values = [router.evaluation.per_target[target][name].value for router in best_first]
        above = [v for v in values if not np.isnan(v) and (name != "auc" or v > CHANCE_AUC)]
        best = better(above, default=float("nan"))
        rows.append([target, *(Cell(worded(v, "number"), best=v == best) for v in values)])
    table = Table(["Target", *(router.name for router in best_first)], rows)
    return [Note(f"{TARGET[name].meaning} {UNDERLINED}"), table]


def _tabulate_extremes(result: ComparisonResult, name: str) -> Table:
    """The first and last three routers by one metric, with its value for every target."""
    ordered, key = by_number(result.routers, name), name.removesuffix("_mean")
    places = list(enumerate(ordered, start=1))
    targets = ordered[0].evaluation.targets
    rows: list[Row] = []
    for place, router in places if len(places) <= 2 * _EDGE else places[:_EDGE] + places[-_EDGE:]:
        values = (router.evaluation.per_target[target][key].value for target in targets)
        mean = estimate_cell(router.headline[name], "number")
        rows.append([f"#{place} {router.name}", mean, *(worded(v, "number") for v in values)])
    return Table([_make_heading(HEADLINE[name]), "Mean", *targets], rows)


def _tabulate_targets(result: ComparisonResult) -> Table:
    names = ("accuracy", "mean_cost")
    rows: list[Row] = [
        [target, *(estimate_cell(values[n], TARGET[n].unit) for n in names)]
        for target, values in result.routers[0].evaluation.per_target.items()
    ]
    return Table(["Target", *(_make_heading(TARGET[name]) for name in names)], rows)


def _tabulate_recipes(result: ComparisonResult) -> Table:
    rows: list[Row] = []
    for router in result.routers:
        recipe = router.fit.recipe.to_dict()
        entry = PREDICTORS.find(recipe["predictor"]["kind"])
        reads = ", ".join(family["kind"] for family in recipe["features"])
        cells = [reads, entry.label, entry.source, recipe["calibration"], recipe["policy"]["kind"]]
        name = Cell(router.name, note="; ".join(router.fit.router.record.notes))
        rows.append([name, *(Cell(c, words=True) for c in cells), f"{router.fit.seconds:,.1f}"])
    head = ["Router", "reads", "predictor", "after", "calibration", "policy", "fit, s"]
    return Table(head, rows)


def _is_defined(result: ComparisonResult, name: str) -> bool:
    return any(router.headline[name].reason == "" for router in result.routers)


def _make_heading(entry: MetricEntry) -> str:
    return heading(entry, unit=", $ per {}")
