"""The metrics of the predicted probabilities alone; they count every label."""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import PerResample
from prefill_router.evaluation.catalogue import metric, target_metric
from prefill_router.evaluation.metrics import NO_PAIR, auc_by_target, brier_by_target, macro_mean
from prefill_router.evaluation.reliability import calibration_error, chance_error
from prefill_router.evaluation.scores import Scores

PerTarget: TypeAlias = Float[NDArray[np.float64], "resample target"]
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
