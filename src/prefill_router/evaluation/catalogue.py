"""The numbers of an evaluation, in words: what each means and how it was read.

`metrics.json`, the page and the documentation take their explanations from here.
"""

from collections.abc import Mapping
from typing import Any

from prefill_router.evaluation.accuracy_cost_plane import Axis
from prefill_router.evaluation.external_metrics import EXTERNAL, external_definitions
from prefill_router.evaluation.formatting import Better, MetricEntry, Unit

__all__ = ["HEADLINE", "REGIME", "TARGET", "Better", "MetricEntry", "Unit", "definitions"]

HEADLINE: Mapping[str, MetricEntry] = {
    "auc_mean": MetricEntry(
        "Mean AUC",
        "number",
        "higher",
        "How often a question that a target answers correctly is given a higher probability than "
        "one it answers wrongly (ties count half), averaged over the targets; 0.5 is chance.",
    ),
    "choice_auc": MetricEntry(
        "Choice AUC",
        "number",
        "higher",
        "Of the questions that exactly one of two targets answers correctly, how often the "
        "probabilities favour it more than on those that only the other one does, averaged over "
        "all pairs of targets; 0.5 is chance. Mean AUC is mostly the difficulty of the question, "
        "which all targets share; this is what chooses.",
    ),
    "choice_auc_best": MetricEntry(
        "Choice AUC, best six",
        "number",
        "higher",
        "The same over the pairs of the six most accurate targets, among which a choice matters.",
    ),
    "brier_mean": MetricEntry(
        "Mean Brier score",
        "number",
        "lower",
        "The mean squared difference between predicted probability and outcome, averaged over the "
        "targets; always saying 0.5 gives 0.25.",
    ),
    "ece_mean": MetricEntry(
        "Calibration error (ECE)",
        "number",
        "lower",
        "How far the predicted probabilities are from how often a target is right, in 15 bins of "
        "equal width, averaged over the targets. Part of it is chance, see the next number; the "
        "interval is that of what endless queries would say.",
    ),
    "ece_by_chance": MetricEntry(
        "ECE by chance",
        "number",
        "neither",
        "What the calibration error would be on average, on as many queries, if every probability "
        "held.",
    ),
    "brier_reliability": MetricEntry(
        "Brier score, reliability",
        "number",
        "lower",
        "The part of the Brier score that comes from probabilities that don't hold; 0 for those "
        "that do.",
    ),
    "brier_resolution": MetricEntry(
        "Brier score, resolution",
        "number",
        "higher",
        "How much the Brier score is lower for telling questions apart; 0 for a predictor that "
        "says the same of all.",
    ),
    "argmax_accuracy": MetricEntry(
        "Argmax accuracy",
        "share",
        "higher",
        "Accuracy when every query goes to the target most probably right (lam = 1), whatever it "
        "costs.",
    ),
    "argmax_cost": MetricEntry(
        "Cost at argmax",
        "usd",
        "lower",
        "The mean observed cost of a query at that setting.",
    ),
    "chosen_accuracy": MetricEntry(
        "Accuracy at the chosen lam",
        "share",
        "higher",
        "Accuracy at the lam that was most accurate on train questions, by fits that had not seen "
        "them: nothing is picked on the questions that are judged.",
    ),
    "chosen_cost": MetricEntry(
        "Cost at the chosen lam", "usd", "lower", "The mean observed cost of a query there."
    ),
    "chosen_gain": MetricEntry(
        "Gain at the chosen lam",
        "points",
        "higher",
        "That accuracy minus the accuracy of the target that is the best on the train questions.",
    ),
    "chosen_headroom": MetricEntry(
        "Headroom at the chosen lam",
        "share",
        "higher",
        "Which part of the way from that target to the oracle the router goes there.",
    ),
    "savings": MetricEntry(
        "Saved at no less accuracy",
        "share",
        "higher",
        "How much less the router spends than the best single target, at the cheapest lam that was "
        "no less accurate than that target on train questions; 0 where no lam was.",
    ),
    "savings_gain": MetricEntry(
        "Accuracy meanwhile",
        "points",
        "higher",
        "By how much it is more accurate than the best single target at that lam.",
    ),
    "max_lam_accuracy": MetricEntry(
        "Max-lam accuracy (paper)",
        "share",
        "higher",
        "The paper's reading: the highest accuracy at any setting of lam, the dial from cheapest "
        "(0) to most probable (1), picked on the queries that it is measured on: optimistic.",
    ),
    "max_lam_cost": MetricEntry(
        "Cost at max-lam (paper)",
        "usd",
        "lower",
        "The mean observed cost of a query at that setting; the cheapest one, where several reach "
        "the highest accuracy.",
    ),
    "best_single_accuracy": MetricEntry(
        "Best single target",
        "share",
        "neither",
        "Accuracy when every query goes to the one target that is best overall.",
    ),
    "oracle_accuracy": MetricEntry(
        "Oracle",
        "share",
        "neither",
        "Accuracy if every query went to a target that answers it correctly, where there is one: "
        "no router can do better.",
    ),
    "oracle_held_out": MetricEntry(
        "Oracle, held out",
        "share",
        "neither",
        "The same without the luck of single runs, on queries that every target answered several "
        "times: the oracle sees all runs but one of each target, and is judged by that one.",
    ),
    "accuracy_gain": MetricEntry(
        "Gain at max-lam (paper)",
        "points",
        "higher",
        "Max-lam accuracy minus the accuracy of the best single target.",
    ),
    "headroom_captured": MetricEntry(
        "Headroom captured (paper)",
        "share",
        "higher",
        "The paper's headroom captured: which part of the way from the best single target to the "
        "oracle the router goes at its highest accuracy, picked on the same queries: optimistic.",
    ),
    "cost_savings": MetricEntry(
        "Cost savings (paper)",
        "share",
        "higher",
        "The paper's reading: how much less the router spends, at max-lam, than sending everything "
        "to the target with the highest mean cost, which nobody would do.",
    ),
    "p_auccc": MetricEntry(
        "P-AUCCC",
        "number",
        "higher",
        "The area under the curve of accuracy against cheapness over all settings of lam, both on "
        "a scale from the worst to the best of the pool.",
    ),
    "mdp_auccc": MetricEntry(
        "MDP-AUCCC",
        "number",
        "higher",
        "By how much that area exceeds the area that the best single targets give without any "
        "router.",
    ),
    "model_only_p_auccc": MetricEntry(
        "P-AUCCC of single targets",
        "number",
        "neither",
        "The area under the Pareto frontier of the single targets.",
    ),
    "oracle_distance": MetricEntry(
        "Oracle distance",
        "number",
        "lower",
        "The mean distance of the router's settings to the corner that is as good as the oracle "
        "and as cheap as the cheapest target.",
    ),
    "oracle_distance_reduction": MetricEntry(
        "Oracle distance saved",
        "number",
        "higher",
        "By how much that distance is shorter than the one of the single targets on the Pareto "
        "frontier.",
    ),
    "model_only_oracle_distance": MetricEntry(
        "Oracle distance of single targets",
        "number",
        "neither",
        "The mean distance of the single targets on the Pareto frontier to the same corner.",
    ),
    "solvable_share": MetricEntry(
        "Solvable queries",
        "share",
        "neither",
        "The share of the queries that at least one target answers correctly.",
    ),
    "solvable_accuracy": MetricEntry(
        "Accuracy on solvable queries",
        "share",
        "higher",
        "Of the queries that some target answers correctly, the share where the target chosen at "
        "lam = 1 does.",
    ),
    "optimal_selection": MetricEntry(
        "Optimal selection",
        "share",
        "higher",
        "Of the same queries, the share where the chosen target is right and no other right target "
        "would have cost less.",
    ),
    **EXTERNAL,
}

TARGET: Mapping[str, MetricEntry] = {
    "auc": MetricEntry("AUC", "number", "higher", "How well its probabilities rank the queries."),
    "brier": MetricEntry("Brier", "number", "lower", "Mean squared error of its probabilities."),
    "accuracy": MetricEntry("Accuracy", "share", "neither", "On the compared queries."),
    "mean_cost": MetricEntry("Mean cost", "usd", "neither", "Observed, of a compared query."),
    "normalised_cost": MetricEntry(
        "Cheapness", "number", "neither", "1 for the cheapest target, 0 for the dearest."
    ),
    "normalised_accuracy": MetricEntry(
        "Normalised accuracy", "number", "neither", "1 for the oracle, 0 for the worst target."
    ),
    "share_routed": MetricEntry(
        "Routed to it", "share", "neither", "Share of the queries at lam = 1."
    ),
    "accuracy_routed": MetricEntry(
        "Accuracy there", "share", "higher", "On the queries routed to it."
    ),
    "accuracy_away": MetricEntry("Accuracy elsewhere", "share", "neither", "On all the others."),
    "accuracy_delta": MetricEntry(
        "Routing delta", "points", "higher", "The difference of the two."
    ),
    "cost_routed": MetricEntry(
        "Cost there", "usd", "neither", "Mean observed, queries routed to it."
    ),
    "cost_away": MetricEntry(
        "Cost elsewhere", "usd", "neither", "Mean observed, all other queries."
    ),
    "cost_delta": MetricEntry("Cost delta", "usd", "neither", "The difference of the two."),
}

REGIME: Mapping[str, MetricEntry] = {
    "share": MetricEntry("Share", "share", "neither", "Of the compared queries."),
    "accuracy": MetricEntry("Argmax accuracy", "share", "higher", "Of the router at lam = 1."),
    "best_single": MetricEntry("Best single", "share", "neither", "Of the target best overall."),
}


def definitions(
    *,
    step: float | None,
    axis: Axis,
    max_cost: float | None = None,
    policy: Mapping[str, Any] | None = None,
    check: str = "",
) -> dict[str, str]:
    """The readings used where a metric has several, by subject.

    Args:
        step: The grid that the curve was read on; None for the exact path.
        axis: How cost was normalised.
        max_cost: The cost that AIQ ends at, if it was given.
        policy: The policy's kind and options; the paper's if not given.
        check: The quality check of a cascade, in words.
    """
    points = (
        "every operating point of the exact lambda path"
        if step is None
        else f"the distinct operating points that a grid of lam with the step {step:g} meets"
    )
    cost = {
        "inverse": "(1/C - 1/C_high) / (1/C_low - 1/C_high)",
        "linear": "(C_high - C) / (C_high - C_low)",
    }[axis]
    said = {"kind": "lambda"} if policy is None else policy
    named = ", ".join(f"{name}: {value}" for name, value in said.items())
    return {
        "policy": named + (f"; quality check: {check}" if check else ""),
        "points": points,
        "cost_axis": f"{axis}: {cost}, C the mean observed cost in US dollars",
        "cost_anchors": "lowest and highest mean observed cost of a single target, these queries",
        "accuracy_anchors": "floor: lowest single-target accuracy; ceiling: the oracle's",
        "p_auccc": "points ordered by normalised cost, padded left to 0 at the leftmost accuracy, "
        "trapezoid; not clipped",
        "oracle_distance": "mean over the points, each counted once, to (1, 1)",
        "model_only": "Pareto frontier of the single targets",
        "max_lam": "highest accuracy over the points; the cheapest of them where several tie",
        "cost_savings": "at the max-lam point, against the target with the highest mean cost",
        "chosen": "lam values picked on predictions for train rows by fits that had not seen them; "
        "best single target of the train rows",
        "auc": "labels cut at 0.5; targets with one class left out of the mean",
        "choice_auc": "AUC of the difference of two targets' predicted log-odds, over the queries "
        "that exactly one of them answers correctly; mean over the pairs where it is defined",
        "brier": "against the labels as they are, soft ones included",
        "compared": "router, single targets, mixes and oracle are held against each other on the "
        "queries where the labels (and costs, where a target has any) of all targets are known; "
        "targets measured on less than a tenth of the labelled queries are not compared with",
        "accuracy": "mean label of the compared queries",
        "cost": "observed, mean over the compared queries where it is known",
        "routing": "delta, routed-to accuracy, regimes and selection are at lam = 1",
        "quartiles": "Q1 to Q4 are four equal parts of the range of mean observed cost along the "
        "exact curve",
        "intervals": "95 % percentile bootstrap over queries, all targets of a query together; "
        "anchors, best single target and max-lam point found anew in each resample; that of the "
        "calibration error is lower by what chance may have added",
        **external_definitions(max_cost=max_cost),
    }
