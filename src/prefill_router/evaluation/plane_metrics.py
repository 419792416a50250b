"""The metrics of the curve in the normalised plane, against the single targets' frontier."""

import numpy as np

from prefill_router.evaluation.accuracy_cost_plane import oracle_distance, padded_area
from prefill_router.evaluation.bootstrap import PerResample
from prefill_router.evaluation.catalogue import metric
from prefill_router.evaluation.scores import Scores


def why_no_plane(scores: Scores) -> str:
    """Why there is no normalised plane, in words."""
    anchors = scores.anchors
    low, high = anchors.cost_low[0], anchors.cost_high[0]
    if np.isnan(low):
        return "no observed cost is known; add prices and token counts, or recorded costs"
    if high == 0:
        return "every target is free, so there is nothing to trade accuracy for"
    if high - low <= 1e-12 * high:
        return "every target has the same mean cost, so costs can't be normalised"
    if low == 0:
        return "a target is free, so inverse cost isn't defined; evaluate with linear cost"
    return "the oracle is no better than the worst target, so accuracy can't be normalised"


@metric("P-AUCCC", "number", "higher", undefined=why_no_plane)
def _p_auccc(scores: Scores) -> PerResample:
    """The area under the curve of accuracy against cheapness over all settings of lam, both on a
    scale from the worst to the best of the pool.

    Reading: points ordered by normalised cost, padded left to 0 at the leftmost accuracy,
    trapezoid; not clipped
    """
    return padded_area(*scores.curve)


@metric("MDP-AUCCC", "number", "higher", undefined=why_no_plane)
def _mdp_auccc(scores: Scores) -> PerResample:
    """By how much that area exceeds the area under the best single targets without a router."""
    return scores.headline["p_auccc"] - scores.headline["model_only_p_auccc"]


@metric(
    "P-AUCCC of single targets", "number", "neither", undefined=why_no_plane, subject="model_only"
)
def _model_only_p_auccc(scores: Scores) -> PerResample:
    """The area under the Pareto frontier of the single targets.

    Reading: Pareto frontier of the single targets
    """
    return padded_area(*scores.frontier_points)


@metric("Oracle distance", "number", "lower", undefined=why_no_plane)
def _oracle_distance(scores: Scores) -> PerResample:
    """The mean distance of the router's settings to the corner of the plane that is as accurate as
    the oracle and as cheap as the cheapest target.

    Reading: mean over the points, each counted once, to (1, 1)
    """
    return oracle_distance(*scores.curve, counted=scores.own.rising.distinct)


@metric("Oracle distance saved", "number", "higher", undefined=why_no_plane)
def _oracle_distance_reduction(scores: Scores) -> PerResample:
    """By how much that distance is shorter than that of the single targets on the Pareto
    frontier.
    """
    return scores.headline["model_only_oracle_distance"] - scores.headline["oracle_distance"]


@metric("Oracle distance of single targets", "number", "neither", undefined=why_no_plane)
def _model_only_oracle_distance(scores: Scores) -> PerResample:
    """The mean distance of the single targets on the Pareto frontier to the same corner."""
    return oracle_distance(*scores.frontier_points, counted=scores.frontier)
