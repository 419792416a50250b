"""The metrics of the target choice at lam = 1: by target, by regime, and on solvable queries."""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import PerResample
from prefill_router.evaluation.catalogue import metric, regime_metric, target_metric
from prefill_router.evaluation.scores import Scores

PerTarget: TypeAlias = Float[NDArray[np.float64], "resample target"]
PerRegime: TypeAlias = Float[NDArray[np.float64], "resample regime"]
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
