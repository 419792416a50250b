"""The metrics of predicted probabilities and of the router's choices.

Accuracy and cost are given at lam = 1, at the lam that was chosen on train rows and at the best lam
of the judged queries, beside those of single targets and the oracle; the choice itself at lam = 1:
by target, by regime, and on solvable queries.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import SAME, PerResample, divide, mean_over
from prefill_router.evaluation.metrics import (
    NO_PAIR,
    PerRegime,
    PerTarget,
    auc_by_target,
    brier_by_target,
    macro_mean,
)
from prefill_router.evaluation.reliability import calibration_error, chance_error
from prefill_router.evaluation.scores import NO_COST, Scores, metric, regime_metric, target_metric

_NONE_CHOSEN = (
    "no cost is known, or no lam was chosen on train rows; fit the router on answers with costs"
)
_NO_HEADROOM = "the oracle is no better than the best single target, so there is no headroom"
_SINGLE_RUNS = (
    "the labels come from single runs, as far as is known, and an oracle profits from their luck: "
    "it and the headroom are too high by an unknown amount; answer some queries several times and "
    "give the mean label with its number of runs"
)


@metric("Argmax accuracy", "share", "higher")
def _argmax_accuracy(scores: Scores) -> PerResample:
    """Accuracy when every query goes to the target that is most probably right (lam = 1),
    regardless of cost.
    """
    return scores.at(1.0)[0]


@metric("Cost at argmax", "usd", "lower", undefined=NO_COST)
def _argmax_cost(scores: Scores) -> PerResample:
    """The mean observed cost per query at that setting."""
    return scores.at(1.0)[1]


@metric("Accuracy at the chosen lam", "share", "higher", undefined=_NONE_CHOSEN, subject="chosen")
def _chosen_accuracy(scores: Scores) -> PerResample:
    """Accuracy at the lam that was most accurate out of fold on train queries: nothing is chosen
    on the judged questions.

    Reading: lam values chosen on out-of-fold predictions for train rows; best single target of the
    train rows
    """
    return scores.at(None if scores.chosen is None else scores.chosen.accurate)[0]


@metric("Cost at the chosen lam", "usd", "lower", undefined=_NONE_CHOSEN)
def _chosen_cost(scores: Scores) -> PerResample:
    """The mean observed cost per query at the chosen lam."""
    return scores.at(None if scores.chosen is None else scores.chosen.accurate)[1]


@metric("Gain at the chosen lam", "points", "higher", undefined=_NONE_CHOSEN)
def _chosen_gain(scores: Scores) -> PerResample:
    """That accuracy minus the accuracy of the target that is best on the train queries."""
    return scores.headline["chosen_accuracy"] - scores.chosen_single[0]


@metric("Headroom at the chosen lam", "share", "higher", undefined=_NONE_CHOSEN)
def _chosen_headroom(scores: Scores) -> PerResample:
    """The part of the accuracy gap between that target and the oracle that the router closes at the
    chosen lam.
    """
    return _divide_by_headroom(scores, scores.headline["chosen_gain"], scores.chosen_single[0])


@metric("Saved at no less accuracy", "share", "higher", undefined=_NONE_CHOSEN)
def _savings(scores: Scores) -> PerResample:
    """How much less the router spends than the best single target, at the cheapest lam that was no
    less accurate than that target on train queries; 0 where no lam was.
    """
    price = scores.chosen_single[1]
    if scores.chosen is None or scores.chosen.thrifty is None:
        return np.where(np.isnan(price), np.nan, 0.0)
    return 1 - divide(scores.at(scores.chosen.thrifty)[1], price)


@metric("Accuracy meanwhile", "points", "higher", undefined=_NONE_CHOSEN)
def _savings_gain(scores: Scores) -> PerResample:
    """By how much the router is more accurate than the best single target at that lam."""
    if scores.chosen is not None and scores.chosen.thrifty is None:
        return np.zeros(len(scores.weights))
    lam = None if scores.chosen is None else scores.chosen.thrifty
    return scores.at(lam)[0] - scores.chosen_single[0]


@metric("Max-lam accuracy", "share", "higher", quoted="paper", subject="max_lam")
def _max_lam_accuracy(scores: Scores) -> PerResample:
    """As in the paper, the highest accuracy at any lam, from cheapest (0) to most probable (1),
    chosen on the queries that it is measured on: optimistic.

    Reading: highest accuracy over the points; the cheapest of them where several tie
    """
    return scores.best[0]


@metric("Cost at max-lam", "usd", "lower", quoted="paper", undefined=NO_COST)
def _max_lam_cost(scores: Scores) -> PerResample:
    """The mean observed cost per query at that setting; at the cheapest, where several reach the
    highest accuracy.
    """
    return scores.best[1]


@metric("Best single target", "share", "neither")
def _best_single_accuracy(scores: Scores) -> PerResample:
    """Accuracy when every query goes to the one target that is best overall."""
    best: PerResample = np.fmax.reduce(scores.singles.accuracy, axis=1)
    return best


@metric("Oracle", "share", "neither")
def _oracle_accuracy(scores: Scores) -> PerResample:
    """Accuracy if every query went to a target that answers it correctly, where there is one: no
    router can do better.
    """
    return scores.anchors.ceiling


@metric(
    "Oracle, held out",
    "share",
    "neither",
    undefined=_SINGLE_RUNS,
)
def _oracle_held_out(scores: Scores) -> PerResample:
    """The same without the luck of single runs, on queries that every target answered several
    times: the oracle sees all runs of each target but one, and is judged by that one.
    """
    return mean_over(scores.same, scores.trial.held_out_label)


@metric("Gain at max-lam", "points", "higher", quoted="paper")
def _accuracy_gain(scores: Scores) -> PerResample:
    """Max-lam accuracy minus the accuracy of the best single target."""
    return scores.best[0] - scores.headline["best_single_accuracy"]


@metric("Headroom captured", "share", "higher", quoted="paper", undefined=_NO_HEADROOM)
def _headroom_captured(scores: Scores) -> PerResample:
    """As in the paper, the part of the accuracy gap between the best single target and the oracle
    that the router closes at its highest accuracy, chosen on the same queries: optimistic.
    """
    gain = scores.headline["accuracy_gain"]
    return _divide_by_headroom(scores, gain, scores.headline["best_single_accuracy"])


@metric("Cost savings", "share", "higher", quoted="paper", undefined=NO_COST)
def _cost_savings(scores: Scores) -> PerResample:
    """As in the paper, how much less the router spends at max-lam than sending every query to the
    target with the highest mean cost, which nobody would do.

    Reading: at the max-lam point, against the target with the highest mean cost
    """
    return 1 - divide(scores.best[1], scores.anchors.cost_high)


def _divide_by_headroom(scores: Scores, gain: PerResample, single: PerResample) -> PerResample:
    room: Float[NDArray[np.float64], " resample"] = scores.anchors.ceiling - single
    return divide(gain, np.where(room > SAME, room, 0))


_NONE_ROUTED = "no measured query is routed to it"
_NONE_AWAY = "no measured query is routed away from it"
_NO_DELTA = "every measured query is routed to it, or none is"
_NONE_RIGHT = "no query has a right answer from a target whose label, and cost, are known"


@target_metric("Accuracy", "share", "neither")
def _accuracy(scores: Scores) -> PerTarget:
    """The target's accuracy on the compared queries.

    Reading: mean label of the compared queries
    """
    return scores.singles.accuracy


@target_metric("Mean cost", "usd", "neither", subject="cost")
def _mean_cost(scores: Scores) -> PerTarget:
    """Mean observed cost per compared query.

    Reading: observed, mean over the compared queries where it is known
    """
    return scores.singles.cost


@target_metric("Routed to it", "share", "neither", undefined=_NONE_ROUTED, subject="routing")
def _share_routed(scores: Scores) -> PerTarget:
    """Share of the queries routed to the target at lam = 1.

    Reading: delta, routed-to accuracy, regimes and selection are at lam = 1
    """
    return scores.routing["share_routed"]


@target_metric("Accuracy there", "share", "higher", undefined=_NONE_ROUTED)
def _accuracy_routed(scores: Scores) -> PerTarget:
    """The target's accuracy on the queries routed to it."""
    return scores.routing["accuracy_routed"]


@target_metric("Accuracy elsewhere", "share", "neither", undefined=_NONE_AWAY)
def _accuracy_away(scores: Scores) -> PerTarget:
    """The target's accuracy on all other queries."""
    return scores.routing["accuracy_away"]


@target_metric("Routing delta", "points", "higher", undefined=_NO_DELTA)
def _accuracy_delta(scores: Scores) -> PerTarget:
    """The difference of the two."""
    return scores.routing["accuracy_delta"]


@target_metric("Cost there", "usd", "neither", undefined=_NONE_ROUTED)
def _cost_routed(scores: Scores) -> PerTarget:
    """Mean observed cost per query routed to it."""
    return scores.routing["cost_routed"]


@target_metric("Cost elsewhere", "usd", "neither", undefined=_NONE_AWAY)
def _cost_away(scores: Scores) -> PerTarget:
    """The target's mean observed cost on all other queries."""
    return scores.routing["cost_away"]


@target_metric("Cost delta", "usd", "neither", undefined=_NO_DELTA)
def _cost_delta(scores: Scores) -> PerTarget:
    """The difference of the two."""
    return scores.routing["cost_delta"]


@target_metric("Cheapness", "number", "neither")
def _normalised_cost(scores: Scores) -> PerTarget:
    """Cost normalised to 1 for the cheapest target and 0 for the most expensive."""
    return scores.anchors.cheapness(scores.singles.cost, axis=scores.scorer.axis)


@target_metric("Normalised accuracy", "number", "neither")
def _normalised_accuracy(scores: Scores) -> PerTarget:
    """Accuracy normalised to 1 for the oracle and 0 for the worst target."""
    return scores.anchors.height(scores.singles.accuracy)


@regime_metric("Share", "share", "neither")
def _share(scores: Scores) -> PerRegime:
    """Share of the compared queries in the regime."""
    return scores.by_regime["share"]


@regime_metric("Argmax accuracy", "share", "higher", name="accuracy")
def _regime_accuracy(scores: Scores) -> PerRegime:
    """The router's accuracy in the regime at lam = 1."""
    return scores.by_regime["accuracy"]


@regime_metric("Best single", "share", "neither")
def _best_single(scores: Scores) -> PerRegime:
    """The accuracy in the regime of the target that is best overall."""
    return scores.by_regime["best_single"]


@metric("Solvable queries", "share", "neither")
def _solvable_share(scores: Scores) -> PerResample:
    """The share of the queries that at least one target answers correctly."""
    return scores.selection["solvable_share"]


@metric("Accuracy on solvable queries", "share", "higher", undefined=_NONE_RIGHT)
def _solvable_accuracy(scores: Scores) -> PerResample:
    """Of the queries that some target answers correctly, the share where the target chosen at
    lam = 1 does.
    """
    return scores.selection["solvable_accuracy"]


@metric("Optimal selection", "share", "higher", undefined=_NONE_RIGHT)
def _optimal_selection(scores: Scores) -> PerResample:
    """Of the same queries, the share where the chosen target is right and no other right target
    would have cost less.
    """
    return scores.selection["optimal_selection"]


_ONE_CLASS = "only one class of answers was measured, all correct or all wrong"
_ONE_CLASS_EACH = "every target has only one class of answers, all correct or all wrong"


@target_metric("AUC", "number", "higher", undefined=_ONE_CLASS)
def _auc(scores: Scores) -> PerTarget:
    """How well the target's predicted probabilities rank the queries.

    Reading: labels cut at 0.5; targets with one class left out of the mean
    """
    return auc_by_target(scores.scorer.ranking, scores.weights)


@target_metric("Brier", "number", "lower")
def _brier(scores: Scores) -> PerTarget:
    """Mean squared error of the target's predicted probabilities.

    Reading: against the labels as they are, soft ones included
    """
    return brier_by_target(scores.trial, scores.weights)


@metric("Mean AUC", "number", "higher", compares=False, undefined=_ONE_CLASS_EACH)
def _auc_mean(scores: Scores) -> PerResample:
    """How often a question that a target answers correctly is given a higher probability than one
    it answers wrongly (ties count half), averaged over the targets; 0.5 is chance.
    """
    return macro_mean(scores.targets["auc"])


@metric("Choice AUC", "number", "higher", compares=False, undefined=NO_PAIR)
def _choice_auc(scores: Scores) -> PerResample:
    """For a pair of targets: how often a question that only the first answers correctly has
    probabilities that favour the first more than a question that only the second answers correctly;
    averaged over all pairs, 0.5 is chance. Mean AUC mostly measures the difficulty of the question,
    which all targets share; routing depends on this number.

    Reading: AUC of the difference of two targets' predicted log-odds, over the queries that exactly
    one of them answers correctly; mean over the pairs where it is defined
    """
    return scores.choice["choice_auc"]


@metric("Choice AUC, best six", "number", "higher", compares=False, undefined=NO_PAIR)
def _choice_auc_best(scores: Scores) -> PerResample:
    """The same over the pairs of the six most accurate targets, where the choice matters most."""
    return scores.choice["choice_auc_best"]


@metric("Mean Brier score", "number", "lower", compares=False)
def _brier_mean(scores: Scores) -> PerResample:
    """The mean squared difference between predicted probability and outcome, averaged over the
    targets; always predicting 0.5 gives 0.25.
    """
    return macro_mean(scores.targets["brier"])


@metric("Calibration error (ECE)", "number", "lower", compares=False)
def _ece_mean(scores: Scores) -> PerResample:
    """How far the predicted probabilities are from how often a target is right, in 15 bins of
    equal width, averaged over the targets. Part of it is chance, see the next number; the interval
    is for the error on infinitely many queries.
    """
    return macro_mean(calibration_error(scores.sums)[:, :-1])


@metric("ECE by chance", "number", "neither", compares=False)
def _ece_by_chance(scores: Scores) -> PerResample:
    """The average calibration error of perfectly calibrated probabilities on as many queries."""
    return macro_mean(chance_error(scores.sums)[:, :-1])


@metric("Brier score, reliability", "number", "lower", compares=False)
def _brier_reliability(scores: Scores) -> PerResample:
    """The part of the Brier score that comes from miscalibration; 0 for perfect calibration."""
    return macro_mean(scores.brier_parts["reliability"][:, :-1])


@metric("Brier score, resolution", "number", "higher", compares=False)
def _brier_resolution(scores: Scores) -> PerResample:
    """How much distinguishing questions lowers the Brier score; 0 for a predictor that gives all
    the same probability.
    """
    return macro_mean(scores.brier_parts["resolution"][:, :-1])
