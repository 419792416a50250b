"""Why a number isn't defined, in words."""

import numpy as np

from prefill_router.evaluation.scores import Scores


def why_undefined(scores: Scores, name: str) -> str:
    """The reason that a headline number can't be computed, from the scores of the queries."""
    if name in ("auc_mean",):
        return "every target has only one class of answers, all correct or all wrong"
    if name in ("headroom_captured",):
        return "the oracle is no better than the best single target, so there is no headroom"
    if name in ("solvable_accuracy", "optimal_selection"):
        return "no query has a right answer from a target whose label, and cost, are known"
    if "auccc" in name or "distance" in name:
        return _why_no_plane(scores)
    if "cost" in name:
        return "no cost is known, or every target is free"
    return "nothing was measured that it could be computed from"


def _why_no_plane(scores: Scores) -> str:
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


def why_target_undefined(name: str) -> str:
    """The reason that a number of one target can't be computed."""
    if name == "auc":
        return "only one class of answers was measured, all correct or all wrong"
    if name.endswith("_routed"):
        return "no measured query is routed to it"
    if name.endswith("_away"):
        return "no measured query is routed away from it"
    if name.endswith("_delta"):
        return "every measured query is routed to it, or none is"
    return "nothing was measured that it could be computed from"
