"""The metrics of accuracy and cost of the router's choices: at lam = 1, at the lam that was chosen
on train rows, at the best lam of the judged queries; and those of single targets and oracle.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import SAME, PerResample, divide, mean_over
from prefill_router.evaluation.catalogue import NO_COST, metric
from prefill_router.evaluation.scores import Scores

_NONE_CHOSEN = "no lam was chosen on train rows, or no cost is known; fit the router again"
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
    """Accuracy at the lam that was most accurate out of fold on train questions: nothing is chosen
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
    """That accuracy minus the accuracy of the target that is best on the train questions."""
    return scores.headline["chosen_accuracy"] - scores.chosen_single[0]


@metric("Headroom at the chosen lam", "share", "higher", undefined=_NONE_CHOSEN)
def _chosen_headroom(scores: Scores) -> PerResample:
    """The part of the accuracy gap between that target and the oracle that the router closes at the
    chosen lam.
    """
    return _of_headroom(scores, scores.headline["chosen_gain"], scores.chosen_single[0])


@metric("Saved at no less accuracy", "share", "higher", undefined=_NONE_CHOSEN)
def _savings(scores: Scores) -> PerResample:
    """How much less the router spends than the best single target, at the cheapest lam that was no
    less accurate than that target on train questions; 0 where no lam was.
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
    return _of_headroom(scores, gain, scores.headline["best_single_accuracy"])


@metric("Cost savings", "share", "higher", quoted="paper", undefined=NO_COST)
def _cost_savings(scores: Scores) -> PerResample:
    """As in the paper, how much less the router spends at max-lam than sending every query to the
    target with the highest mean cost, which nobody would do.

    Reading: at the max-lam point, against the target with the highest mean cost
    """
    return 1 - divide(scores.best[1], scores.anchors.cost_high)


def _of_headroom(scores: Scores, gain: PerResample, single: PerResample) -> PerResample:
    room: Float[NDArray[np.float64], " resample"] = scores.anchors.ceiling - single
    return divide(gain, np.where(room > SAME, room, 0))
