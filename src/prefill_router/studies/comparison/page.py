"""The page of a comparison: one file that opens offline, for somebody who hasn't read the paper."""

from collections.abc import Mapping, Sequence
from html import escape

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.bootstrap import Estimates
from prefill_router.evaluation.catalogue import HEADLINE, TARGET, MetricEntry
from prefill_router.evaluation.formatting import PER, worded
from prefill_router.predictors import registry
from prefill_router.reporting import pages
from prefill_router.reporting.pages import (
    estimate_cell,
    facts,
    figure,
    page,
    paragraph,
    plain_cell,
    section,
    table,
    wide,
)
from prefill_router.studies.comparison.comparison import ComparedRouter, ComparisonResult, beats
from prefill_router.studies.comparison.figures import by_number, captions

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
"""The numbers of the first table: ours, and those of the paper's tables."""
SAME_FOR_ALL = (
    "best_single_accuracy",
    "oracle_accuracy",
    "oracle_held_out",
    "model_only_p_auccc",
    "model_only_oracle_distance",
    "solvable_share",
)
"""Numbers of the targets and not of a router."""
_ARROW = {"higher": " ↑", "lower": " ↓", "neither": ""}
_EDGE = 3
_BASELINES = (
    "Baselines are implementations of this package, not their authors' code. A learned cascade "
    "(FrugalGPT) reads no text of an answer, since datasets keep none: its scorer knows the "
    "answer's length and the router's prediction. The guides on predictors and policies say what "
    "else differs from each paper."
)


def render(
    result: ComparisonResult, *, title: str, known: Mapping[str, str], svg: Mapping[str, str]
) -> str:
    """The page's HTML.

    Args:
        result: What is reported.
        title: Heads it.
        known: What the reader must know of the data.
        svg: The figures as SVG elements, `curves` and `intervals`.
    """
    others = [n for n in HEADLINE if n not in (*MAIN, *SAME_FOR_ALL) and _defined(result, n)]
    under = captions()
    return page(
        title,
        *(paragraph(text) for text in verdict(result)),
        facts(known),
        section(
            "The routers",
            paragraph(
                "↑ higher is better, ↓ lower is better. The small print is the 95 % interval over "
                f"resampled queries. {pages.BOLD} Here and below that is the reference, "
                f"{result.plan.reference}.",
                soft=True,
            ),
            wide(numbers(result, MAIN)),
        ),
        section("Accuracy and cost", figure(svg["curves"], under["curves"])),
        section("How sure the numbers are", figure(svg["intervals"], under["intervals"])),
        section(f"Differences from {result.plan.reference}", wide(differences(result))),
        section("Better than no predictor at all?", *_over_constant(result)),
        section("Each target: AUC ↑", _soft(TARGET["auc"]), wide(per_target(result, "auc"))),
        section(
            "Each target: Brier score ↓", _soft(TARGET["brier"]), wide(per_target(result, "brier"))
        ),
        section(
            "Best and worst",
            wide(best_and_worst(result, "auc_mean")),
            wide(best_and_worst(result, "brier_mean")),
        ),
        section("What other benchmarks quote", wide(numbers(result, others))),
        section("The targets themselves", wide(_targets(result))),
        section(
            "How each router is made",
            paragraph(_BASELINES, soft=True),
            wide(_recipes(result)),
            *_failed(result),
        ),
        section("What the numbers mean", facts(_meanings(result, others))),
        section("How they were read", facts(_definitions(result))),
    )


def verdict(result: ComparisonResult) -> list[str]:
    """The result in a few sentences."""
    first = result.routers[0].evaluation
    best = by_number(result.routers, "auc_mean")[0]
    chooser = by_number(result.routers, "choice_auc")[0]
    shared = result.routers[0].headline
    auc, choice = (
        worded(one.headline[name].value, "number")
        for one, name in ((best, "auc_mean"), (chooser, "choice_auc"))
    )
    single, oracle = (
        worded(shared[name].value, "share") for name in ("best_single_accuracy", "oracle_accuracy")
    )
    sentences = [
        *_worth(result),
        f"{len(result.routers)} routers were fitted on the same queries and judged on "
        f"{first.queries:,} others. "
        + _told(
            best.headline["auc_mean"],
            f"{best.name} predicts best which target will be right (mean AUC {auc}).",
            "Which predicts best isn't known",
        )
        + " "
        + _told(
            chooser.headline["choice_auc"],
            f"{chooser.name} tells best which of two targets will be (choice AUC {choice}).",
            "Which tells two targets apart best isn't known",
        )
        + " "
        + _told(
            shared["best_single_accuracy"],
            f"The best single target answers {single}, and a perfect router would reach {oracle}.",
            "What the best single target answers isn't known",
        ),
    ]
    better = _better(result)
    sentences.append(
        f"Surely better than the reference, {result.plan.reference}, in mean AUC: "
        + (", ".join(better) if better else "none")
        + "."
    )
    return sentences


def _told(one: Estimate, said: str, otherwise: str) -> str:
    """A sentence, or where its number isn't defined the reason."""
    return said if one.reason == "" else f"{otherwise}: {one.reason}."


def _worth(result: ComparisonResult) -> list[str]:
    """Which routers are worth having, by their verdicts."""
    said: dict[str, list[str]] = {}
    for one in result.routers:
        if one.evaluation.verdict is not None:
            said.setdefault(one.evaluation.verdict.word, []).append(one.name)
    return [
        f"{word.capitalize()}, against the best fixed mix of targets at equal cost: "
        f"{', '.join(said[word])}."
        for word in ("worth it", "can't tell", "not worth it")
        if word in said
    ]


def _better(result: ComparisonResult) -> list[str]:
    return [one.name for one in result.routers if sure(one.against, "auc_mean") == "better"]


def sure(against: Estimates, name: str) -> pages.Sure:
    """What the difference from the reference says of a router; nothing of the reference itself."""
    return pages.sure(against[name], HEADLINE[name].better) if name in against else ""


def numbers(result: ComparisonResult, names: Sequence[str]) -> str:
    """A table of headline numbers, a row per router, the best AUC first."""
    head = ["Router", *(_heading(HEADLINE[name]) for name in names)]
    rows = []
    for one in by_number(result.routers, "auc_mean"):
        cells = [_number(one, name) for name in names]
        rows.append([escape(one.name), *cells])
    return table(head, rows)


def _number(one: ComparedRouter, name: str) -> str:
    return estimate_cell(one.headline[name], HEADLINE[name].unit, held=sure(one.against, name))


def differences(result: ComparisonResult) -> str:
    """A table of the paired differences from the reference."""
    head = ["Router", *(_heading(HEADLINE[name]) for name in MAIN)]
    rows = [
        [
            escape(one.name),
            *(
                estimate_cell(
                    one.against[name],
                    "points" if HEADLINE[name].unit == "share" else HEADLINE[name].unit,
                    signed=True,
                    held=sure(one.against, name),
                )
                for name in MAIN
            ),
        ]
        for one in by_number(result.routers, "auc_mean")
        if one.name != result.plan.reference
    ]
    return table(head, rows) if rows else paragraph("There is no other router.")


def _over_constant(result: ComparisonResult) -> list[str]:
    lost = [one for one in result.routers if not beats(one.over_constant)]
    said = (
        "Every router's AUC and Brier score are better than those of always predicting each "
        "target's share of right answers, with intervals that exclude 0."
        if not lost
        else "Not surely better than always predicting each target's share of right answers, in "
        "AUC or in Brier score: " + ", ".join(one.name for one in lost) + "."
    )
    head = ["Router", "AUC over 0.5", "Brier score less the constant's", "surely better"]
    rows = [
        [
            escape(one.name),
            estimate_cell(one.over_constant["auc_mean"], "number", signed=True),
            estimate_cell(one.over_constant["brier_mean"], "number", signed=True),
            plain_cell("yes" if beats(one.over_constant) else "no"),
        ]
        for one in by_number(result.routers, "auc_mean")
    ]
    return [paragraph(said), wide(table(head, rows))]


def per_target(result: ComparisonResult, name: str) -> str:
    """A table of one number of every target, a column per router."""
    ordered = by_number(result.routers, "auc_mean")
    better = max if TARGET[name].better == "higher" else min
    rows = []
    for target in ordered[0].evaluation.targets:
        values = [one.evaluation.per_target[target][name] for one in ordered]
        known = [v.value for v in values if v.value == v.value]
        best = better(known) if known else float("nan")
        cells = [plain_cell(worded(v.value, "number"), best=v.value == best) for v in values]
        rows.append([escape(target), *cells])
    return table(["Target", *(escape(one.name) for one in ordered)], rows)


def best_and_worst(result: ComparisonResult, name: str) -> str:
    """The first and last three routers by one number, with every target's."""
    ordered, key = by_number(result.routers, name), name.removesuffix("_mean")
    count = len(ordered)
    picked = (
        list(range(count)) if count <= 2 * _EDGE else [*range(_EDGE), *range(count - _EDGE, count)]
    )
    targets = ordered[0].evaluation.targets
    rows = [
        [
            escape(f"#{place + 1} {ordered[place].name}"),
            estimate_cell(ordered[place].headline[name], "number"),
            *(
                plain_cell(worded(ordered[place].evaluation.per_target[t][key].value, "number"))
                for t in targets
            ),
        ]
        for place in picked
    ]
    return table([_heading(HEADLINE[name]), "Mean", *map(escape, targets)], rows)


def _targets(result: ComparisonResult) -> str:
    names = ("accuracy", "mean_cost")
    rows = [
        [escape(target), *(estimate_cell(values[n], TARGET[n].unit) for n in names)]
        for target, values in result.routers[0].evaluation.per_target.items()
    ]
    return table(["Target", *(_heading(TARGET[name]) for name in names)], rows)


def _recipes(result: ComparisonResult) -> str:
    rows = []
    for one in result.routers:
        made = one.fitted.recipe.to_dict()
        entry = registry.find(made["predictor"]["kind"])
        reads = ", ".join(family["kind"] for family in made["features"])
        cells = [reads, entry.label, entry.source, made["calibration"], made["policy"]["kind"]]
        seconds = f"{one.fitted.seconds:,.1f}"
        notes = "; ".join(one.fitted.router.record.notes)
        rows.append(
            [
                escape(one.name),
                *(f'<td class="text">{escape(c)}</td>' for c in cells),
                plain_cell(seconds, note=""),
            ]
        )
        if notes:
            rows[-1][0] += f"<br><small>{escape(notes)}</small>"
    head = ["Router", "reads", "predictor", "after", "calibration", "policy", "fit, s"]
    return table(head, rows)


def _failed(result: ComparisonResult) -> list[str]:
    if not result.failed:
        return []
    lines = {one.name: one.why for one in result.failed}
    return [paragraph("These could not be fitted:"), facts(lines)]


def _meanings(result: ComparisonResult, others: Sequence[str]) -> dict[str, str]:
    del result
    return {HEADLINE[name].label: HEADLINE[name].meaning for name in (*MAIN, *others)}


def _definitions(result: ComparisonResult) -> dict[str, str]:
    """What is the same for all; each router's policy stands beside its recipe."""
    first = result.routers[0].evaluation.definitions
    return {name: said for name, said in first.items() if name != "policy"}


def _defined(result: ComparisonResult, name: str) -> bool:
    return any(one.headline[name].reason == "" for one in result.routers)


def _heading(entry: MetricEntry) -> str:
    unit = f", $ per {PER:,}" if entry.unit == "usd" else ""
    return escape(entry.label + unit + _ARROW[entry.better])


def _soft(entry: MetricEntry) -> str:
    return paragraph(f"{entry.meaning} {pages.UNDERLINED}", soft=True)
