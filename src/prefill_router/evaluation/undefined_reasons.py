"""Why a number isn't defined, in words."""

import numpy as np

from prefill_router.evaluation.scores import Scores

OF_PREDICTIONS = (
    *("auc_mean", "choice_auc", "choice_auc_best", "brier_mean", "ece_mean", "ece_by_chance"),
    *("brier_reliability", "brier_resolution"),
)
"""The headline numbers of the probabilities alone: they count every label."""


def why_undefined(scores: Scores, name: str) -> str:
    """The reason that a headline number can't be computed, from the scores of the queries."""
    if name.startswith("choice_auc"):
        return "no query was answered correctly by exactly one of two targets"
    if name not in OF_PREDICTIONS and np.isnan(scores.singles.accuracy).all():
        return "no query has the outcomes of all targets, so nothing can be compared"
    if name == "apgr" or name.startswith("cpt_"):
        return _why_no_pair(scores)
    if name in ("pareto_dist", "blueprint_area"):
        return _why_no_plane(scores)
    if name.startswith(("chosen", "savings")):
        return "no lam was chosen on train rows, or no cost is known; fit the router again"
    if name == "mix_gain":
        return "the router's settings and the single targets have no range of costs in common"
    if name == "router_arena":
        return "no cost is known at the router's most accurate end"
    if name in ("auc_mean",):
        return "every target has only one class of answers, all correct or all wrong"
    if name in ("headroom_captured",):
        return "the oracle is no better than the best single target, so there is no headroom"
    if name in ("solvable_accuracy", "optimal_selection"):
        return "no query has a right answer from a target whose label, and cost, are known"
    if name == "oracle_held_out":
        return (
            "the labels are of single runs, as far as is known, and an oracle picks their luck: it "
            "and the headroom are too high by an unknown amount; answer some queries several times "
            "and give the mean label with its number of runs"
        )
    if "auccc" in name or "distance" in name:
        return _why_no_plane(scores)
    if name in ("gain_random", "gain_best", "gap_oracle", "perf_gain"):
        return "no answer of any target is right, so nothing can be relative to it"
    if "cost" in name or name == "aiq":
        return "no cost is known, or every target is free"
    return "nothing was measured that it could be computed from"


def _why_no_pair(scores: Scores) -> str:
    count = scores.singles.accuracy.shape[1]
    if count != 2:
        return f"it is of a strong and a weak target; {count} targets were evaluated"
    return "neither of the two targets is known to be more accurate than the other"


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
