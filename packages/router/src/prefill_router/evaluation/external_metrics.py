"""The metrics of the normalised plane and of other router benchmarks, with their references.

The curve is measured against the single targets' frontier. Of other benchmarks there are
RouterBench's AIQ, RouterArena's score, the area of NVIDIA's blueprint, and LLMRouterBench's gains
and ParetoDist, the distance of a router's settings to the Pareto frontier of everything compared.
RouteLLM's APGR and CPT are computed in `curve`.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import SAME, PerPoint, PerResample, divide
from prefill_router.evaluation.curve import ComparedSystems, CurveReading, Points
from prefill_router.evaluation.fixed_mix import (
    Anchors,
    area,
    envelope,
    oracle_distance,
    padded_area,
)
from prefill_router.evaluation.metrics import macro_mean
from prefill_router.evaluation.scores import NO_COST, Scores, metric


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


_NONE_RIGHT = "no answer of any target is right, so nothing can be relative to it"
_NO_RANGE = "the router's settings and the single targets have no range of costs in common"
_NO_END_COST = "no cost is known at the router's most accurate end"


def _why_no_pair(scores: Scores) -> str:
    count = scores.singles.accuracy.shape[1]
    if count != 2:
        return f"it needs a strong and a weak target; {count} targets were evaluated"
    return "neither of the two targets is known to be more accurate than the other"


@metric("Random target", "share", "neither")
def _random_accuracy(scores: Scores) -> PerResample:
    """Accuracy when every query goes to a target drawn at random, each as likely as the others."""
    return macro_mean(scores.singles.accuracy)


@metric("Cost of a random target", "usd", "neither", undefined=NO_COST)
def _random_cost(scores: Scores) -> PerResample:
    """The mean observed cost per query with random choice."""
    return macro_mean(scores.singles.cost)


@metric("Gain over the best mix", "points", "higher", undefined=_NO_RANGE, subject="mix")
def _mix_gain(scores: Scores) -> PerResample:
    """How far the router's curve runs above the best fixed mix of targets at the same cost, on
    average over the costs that both reach. A mix sends fixed shares of the queries to fixed targets
    without looking at them; a router that isn't above it has learned nothing useful.

    Reading: upper concave envelope of the single targets' (cost, accuracy), level beyond the best;
    gain: mean over cost of the linearly interpolated points minus the mix, over the range of costs
    that both cover
    """
    return mix_gain(scores.own.rising, scores.singles)


@metric("AIQ", "number", "higher", quoted="RouterBench", undefined=NO_COST)
def _aiq(scores: Scores) -> PerResample:
    """The area under the best accuracy that the router's settings and mixes of them reach at each
    cost, divided by the largest cost. It depends on that cost, so on which systems are compared.

    Reading: non-decreasing concave envelope of the points, level from the last one to {max_cost},
    trapezoid from the first, divided by that cost
    """
    return aiq(scores.own.rising, scores.among.max_cost)


@metric(
    "APGR",
    "number",
    "higher",
    quoted="RouteLLM",
    undefined=_why_no_pair,
    subject="strong_weak",
)
def _apgr(scores: Scores) -> PerResample:
    """For a strong and a weak target: the part of the accuracy gap between them that is closed, on
    average over the share of queries sent to the strong one; 0.5 is random choice.

    Reading: strong: the more accurate of two targets on all the evaluated queries, or the one that
    the policy names; the curve over the share of strong calls is completed by the two targets alone
    at 0 and 1; queries without a label of either are left out; CPT interpolates linearly at the
    first crossing
    """
    return scores.strong_weak["apgr"]


@metric("CPT 20 %", "share", "lower", quoted="RouteLLM", undefined=_why_no_pair)
def _cpt_20(scores: Scores) -> PerResample:
    """The share of queries sent to the strong target that closes 20 % of the gap."""
    return scores.strong_weak["cpt_20"]


@metric("CPT 50 %", "share", "lower", quoted="RouteLLM", undefined=_why_no_pair)
def _cpt_50(scores: Scores) -> PerResample:
    """The share of queries sent to the strong target that closes half of the gap."""
    return scores.strong_weak["cpt_50"]


@metric("CPT 80 %", "share", "lower", quoted="RouteLLM", undefined=_why_no_pair)
def _cpt_80(scores: Scores) -> PerResample:
    """The share of queries sent to the strong target that closes 80 % of the gap."""
    return scores.strong_weak["cpt_80"]


@metric(
    "Gain@R",
    "share",
    "higher",
    quoted="LLMRouterBench",
    undefined=_NONE_RIGHT,
    subject="gains",
)
def _gain_random(scores: Scores) -> PerResample:
    """By how much the router's accuracy at its most accurate end is higher than a random target's,
    relative to the latter.

    Reading: relative, at the policy's most accurate end (gain_random, gain_best, gap_oracle) or its
    most accurate setting (perf_gain)
    """
    return _divide_gain(scores.headline["argmax_accuracy"], scores.headline["random_accuracy"])


@metric("Gain@B", "share", "higher", quoted="LLMRouterBench", undefined=_NONE_RIGHT)
def _gain_best(scores: Scores) -> PerResample:
    """By how much the router's accuracy at the same end is higher than the best single target's,
    relative to the latter.
    """
    return _divide_gain(scores.headline["argmax_accuracy"], scores.headline["best_single_accuracy"])


@metric("Gap@O", "share", "lower", quoted="LLMRouterBench", undefined=_NONE_RIGHT)
def _gap_oracle(scores: Scores) -> PerResample:
    """By how much the router's accuracy at the same end is lower than the oracle's, relative to the
    latter.
    """
    oracle = scores.anchors.ceiling
    return divide(oracle - scores.headline["argmax_accuracy"], oracle)


@metric("PerfGain", "share", "higher", quoted="LLMRouterBench", undefined=_NONE_RIGHT)
def _perf_gain(scores: Scores) -> PerResample:
    """By how much the accuracy of the router's best setting is higher than the best single
    target's, relative to the latter.
    """
    return _divide_gain(scores.best[0], scores.headline["best_single_accuracy"])


@metric("CostSave", "share", "higher", quoted="LLMRouterBench", undefined=NO_COST)
def _cost_save(scores: Scores) -> PerResample:
    """How much of the best single target's cost the router saves at no loss of accuracy; 0 where
    no setting is as accurate, since one can then stay with that target.
    """
    best = (scores.headline["best_single_accuracy"] - SAME)[:, None]
    price, spent = (
        np.fmin.reduce(np.where(points.accuracy >= best, points.cost, np.nan), axis=1)
        for points in (scores.singles, scores.own.points)
    )
    return divide(price - np.fmin(spent, price), price)


@metric("ParetoDist", "number", "lower", quoted="LLMRouterBench", undefined=why_no_plane)
def _pareto_dist(scores: Scores) -> PerResample:
    """The mean distance of the router's curve to the Pareto frontier of all compared curves and
    single targets.

    Reading: curves are interpolated linearly at 101 costs evenly spaced over their own range;
    distances are in the plane of linear cost and normalised accuracy, to the nearest undominated
    point of all compared curves and single targets
    """
    return pareto_distance(scores.own, scores.among, scores.anchors)


@metric("RouterArena score", "number", "higher", undefined=_NO_END_COST)
def _router_arena(scores: Scores) -> PerResample:
    """A weighted harmonic mean of the accuracy at the most accurate end and a logarithmic score of
    its cost, from 0 at $200 per 1,000 queries to 1 at $0.0044.

    Reading: (1 + b) A C / (b A + C), b = 0.1, C = (log2 200 - log2 c) / (log2 200 - log2 0.0044), c
    dollars per 1,000 queries, clamped; at the policy's most accurate end
    """
    return router_arena(scores.headline["argmax_accuracy"], scores.headline["argmax_cost"])


@metric("Area over price", "number", "higher", quoted="NVIDIA blueprint", undefined=why_no_plane)
def _blueprint_area(scores: Scores) -> PerResample:
    """The area between the router's accuracy and that of the worst target, over price from the
    cheapest to the most expensive target.

    Reading: trapezoid of accuracy minus floor over linear cost, padded left as P-AUCCC
    """
    return blueprint_area(scores.own.rising, scores.anchors)


def _divide_gain(accuracy: PerResample, other: PerResample) -> PerResample:
    return divide(accuracy - other, other)


def pareto_distance(own: CurveReading, among: ComparedSystems, anchors: Anchors) -> PerResample:
    """The mean distance of the curve to the nearest undominated point.

    In the plane of linear cost and normalised accuracy; NaN where that isn't defined.
    """
    front_x, front_y = _find_front(
        anchors.cheapness(among.cost, axis="linear"), anchors.height(among.accuracy)
    )
    x, y = anchors.cheapness(own.cost, axis="linear"), anchors.height(own.accuracy)
    squared = np.full_like(x, np.nan)
    for front in range(front_x.shape[1]):  # one at a time, since all at once leave the cache
        across, up = x - front_x[:, front, None], y - front_y[:, front, None]
        np.fmin(squared, across * across + up * up, out=squared)
    nearest = np.sqrt(squared)
    is_known = ~np.isnan(nearest)
    total = np.where(is_known, nearest, 0).sum(axis=1)
    return divide(total, is_known.sum(axis=1).astype(np.float64))


def _find_front(
    x: PerPoint, y: PerPoint
) -> tuple[
    Float[NDArray[np.float64], "resample undominated"],
    Float[NDArray[np.float64], "resample undominated"],
]:
    """The undominated points, padded with NaN; x is cheapness, so more is better."""
    is_finite = np.isfinite(x) & np.isfinite(y)
    keys = (np.where(is_finite, -y, np.inf), np.where(is_finite, -x, np.inf))
    order = np.lexsort(keys, axis=1)
    x, y = np.take_along_axis(x, order, axis=1), np.take_along_axis(y, order, axis=1)
    height = np.where(np.take_along_axis(is_finite, order, axis=1), y, -np.inf)
    best = np.maximum.accumulate(height, axis=1)
    is_on_front = height > -np.inf
    is_on_front[:, 1:] &= height[:, 1:] > best[:, :-1]
    width = max(1, int(is_on_front.sum(axis=1).max(initial=0)))
    place = np.argsort(~is_on_front, axis=1, kind="stable")[:, :width]
    is_filled = np.take_along_axis(is_on_front, place, axis=1)
    xs, ys = (np.where(is_filled, np.take_along_axis(v, place, axis=1), np.nan) for v in (x, y))
    return xs, ys


_WEIGHT = 0.1
_CLAMP = (0.0044, 200.0)
"""RouterArena: the weight of cost, and its range in US dollars per 1,000 queries."""


def mix_gain(points: Points, singles: Points) -> PerResample:
    """The curve's mean height over the best fixed mix, over the costs that both reach.

    Args:
        points: The curve's points by rising cost, unknown costs last.
        singles: The single targets.
    """
    cost, accuracy = envelope(singles.cost, singles.accuracy)
    low = np.fmax(np.fmin.reduce(points.cost, axis=1), np.fmin.reduce(singles.cost, axis=1))
    costliest = np.fmax.reduce(singles.cost, axis=1)
    high = np.fmin(np.fmax.reduce(points.cost, axis=1), costliest)
    high = np.where(high - low > SAME * np.abs(high), high, np.nan)
    own = area(points.cost, points.accuracy, low, high)
    # The mix is level from its last corner to the most expensive target.
    cost = np.concatenate([cost, np.fmax(cost[:, -1:], costliest[:, None])], axis=1)
    accuracy = np.concatenate([accuracy, accuracy[:, -1:]], axis=1)
    return divide(own - area(cost, accuracy, low, high), high - low)


def aiq(points: Points, max_cost: PerResample) -> PerResample:
    """RouterBench: the area under the envelope up to the largest cost, divided by that cost."""
    cost, accuracy = envelope(points.cost, points.accuracy)
    cost = np.concatenate([cost, np.fmax(cost[:, -1:], max_cost[:, None])], axis=1)
    accuracy = np.concatenate([accuracy, accuracy[:, -1:]], axis=1)
    under = area(cost, accuracy, cost[:, 0], np.fmax(max_cost, cost[:, 0]))
    return divide(np.where(np.isnan(cost[:, 0]), np.nan, under), max_cost)


def router_arena(accuracy: PerResample, cost: PerResample) -> PerResample:
    """RouterArena's score of an accuracy at a mean cost in US dollars per query."""
    low, high = (float(np.log2(end)) for end in _CLAMP)
    cheapness = (high - np.log2(np.clip(1000 * cost, *_CLAMP))) / (high - low)
    together = (1 + _WEIGHT) * accuracy * cheapness
    parts = _WEIGHT * accuracy + cheapness
    return np.where(parts == 0, 0, divide(together, parts))


def blueprint_area(points: Points, anchors: Anchors) -> PerResample:
    """NVIDIA's blueprint: the area of accuracy minus the worst target's, over linear price."""
    cheapness = anchors.cheapness(points.cost, axis="linear")
    return padded_area(cheapness, points.accuracy - anchors.floor[:, None])
