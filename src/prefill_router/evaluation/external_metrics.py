"""The numbers that other benchmarks of routers quote, the references they need, and what they mean.

RouterBench's AIQ, RouterArena's score, the area of NVIDIA's blueprint, and LLMRouterBench's gains
and ParetoDist: how far a router's settings are from what nothing that is compared beats. RouteLLM's
APGR and CPT are computed in `strong_weak`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.accuracy_cost_plane import Anchors, area, envelope, padded_area
from prefill_router.evaluation.bootstrap import PerResample, divide
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.formatting import MetricEntry

EXTERNAL: Mapping[str, MetricEntry] = {
    "random_accuracy": MetricEntry(
        "Random target",
        "share",
        "neither",
        "Accuracy when every query goes to a target drawn at random, each as likely as the others.",
    ),
    "random_cost": MetricEntry(
        "Cost of a random target", "usd", "neither", "The mean observed cost of a query so."
    ),
    "mix_gain": MetricEntry(
        "Gain over the best mix",
        "points",
        "higher",
        "How far the router's curve runs above the best fixed mix of targets at the same cost, on "
        "average over the costs that both reach. A mix sends fixed shares of the queries to fixed "
        "targets without looking at them; a router that isn't above it knows nothing of use.",
    ),
    "aiq": MetricEntry(
        "AIQ (RouterBench)",
        "number",
        "higher",
        "The area under the best that settings of the router and mixes of them reach at each cost, "
        "divided by the largest cost. It depends on that cost, so on what is compared.",
    ),
    "apgr": MetricEntry(
        "APGR (RouteLLM)",
        "number",
        "higher",
        "For a strong and a weak target: which part of the gap between them is closed, on average "
        "over the share of queries sent to the strong one; 0.5 is a blind choice.",
    ),
    "cpt_20": MetricEntry(
        "CPT 20 % (RouteLLM)",
        "share",
        "lower",
        "The share of queries sent to the strong target that closes 20 % of the gap.",
    ),
    "cpt_50": MetricEntry(
        "CPT 50 % (RouteLLM)",
        "share",
        "lower",
        "The share of queries sent to the strong target that closes half of the gap.",
    ),
    "cpt_80": MetricEntry(
        "CPT 80 % (RouteLLM)",
        "share",
        "lower",
        "The share of queries sent to the strong target that closes 80 % of the gap.",
    ),
    "gain_random": MetricEntry(
        "Gain@R (LLMRouterBench)",
        "share",
        "higher",
        "By which part of a random target's accuracy the router's, at its most accurate end, is "
        "higher.",
    ),
    "gain_best": MetricEntry(
        "Gain@B (LLMRouterBench)",
        "share",
        "higher",
        "By which part of the best single target's accuracy the router's, at the same end, is "
        "higher.",
    ),
    "gap_oracle": MetricEntry(
        "Gap@O (LLMRouterBench)",
        "share",
        "lower",
        "By which part of the oracle's accuracy the router's, at the same end, is lower.",
    ),
    "perf_gain": MetricEntry(
        "PerfGain (LLMRouterBench)",
        "share",
        "higher",
        "By which part of the best single target's accuracy the router's best setting is higher.",
    ),
    "cost_save": MetricEntry(
        "CostSave (LLMRouterBench)",
        "share",
        "higher",
        "How much of the best single target's cost the router saves at no loss of accuracy; 0 "
        "where no setting is as accurate, since one can then stay with that target.",
    ),
    "pareto_dist": MetricEntry(
        "ParetoDist (LLMRouterBench)",
        "number",
        "lower",
        "The mean distance of the router's curve to the nearest point, of all curves and single "
        "targets compared, that nothing beats in both cost and accuracy.",
    ),
    "router_arena": MetricEntry(
        "RouterArena score",
        "number",
        "higher",
        "A weighted harmonic mean of the accuracy at the most accurate end and of the logarithm of "
        "its cost, from $200 per 1,000 queries (0) to $0.0044 (1).",
    ),
    "blueprint_area": MetricEntry(
        "Area over price (NVIDIA blueprint)",
        "number",
        "higher",
        "The area between the router's accuracy and that of the worst target, over price from the "
        "cheapest to the dearest target.",
    ),
}


def external_definitions(*, max_cost: float | None) -> dict[str, str]:
    """The readings used for these numbers, by subject.

    Args:
        max_cost: The cost that AIQ ends at, US dollars per query; the largest of the compared
            systems if not given.
    """
    largest = "the largest cost of any setting of the compared systems (alone: of its own)"
    ends = largest if max_cost is None else f"{max_cost:g} US dollars per query"
    return {
        "mix": "upper concave envelope of the single targets' (cost, accuracy), level beyond the "
        "best; gain: mean over cost of the linearly joined points minus the mix, from the dearer "
        "of both beginnings to the cheaper of both ends",
        "aiq": "non-decreasing concave envelope of the points, level from the last one to "
        f"{ends}, trapezoid from the first, divided by that cost",
        "strong_weak": "strong: the more accurate of two targets on all the evaluated queries, or "
        "the one that the policy names; the curve over the share of strong calls is completed by "
        "the two targets alone at 0 and 1; queries without a label of either are left out; CPT "
        "interpolates linearly at the first crossing",
        "gains": "relative, at the policy's most accurate end (gain_random, gain_best, "
        "gap_oracle) or its most accurate setting (perf_gain)",
        "pareto_dist": "curves, their points joined by lines, read at 101 costs evenly spread over "
        "their own range; in the plane of linear cost and normalised accuracy; to the nearest of "
        "all compared curves' readings and single targets that none of them dominates",
        "router_arena": "(1 + b) A C / (b A + C), b = 0.1, C = (log2 200 - log2 c) / (log2 200 - "
        "log2 0.0044), c dollars per 1,000 queries, clamped; at the policy's most accurate end",
        "blueprint_area": "trapezoid of accuracy minus floor over linear cost, padded left as "
        "P-AUCCC",
    }


PLACES = 101
"""How many costs a curve is read at: few enough to hold each against each."""
PerPoint = Float[NDArray[np.float64], "resample point"]


@final
@dataclass(frozen=True, eq=False)
class CurveReading:
    """A system's operating points, in the forms that the metrics need.

    Attributes:
        points: By rising setting.
        rising: By rising cost, those of unknown cost last.
        cost: Costs evenly spread from the cheapest setting to the dearest, US dollars.
        accuracy: There, the points joined by lines.
    """

    points: Points
    rising: Points
    cost: Float[NDArray[np.float64], "resample place"]
    accuracy: Float[NDArray[np.float64], "resample place"]

    @classmethod
    def of(cls, points: Points) -> "CurveReading":
        """Sort and read the points."""
        rising = points.by_cost()
        known = np.isfinite(rising.cost) & np.isfinite(rising.accuracy)
        low = np.fmin.reduce(np.where(known, rising.cost, np.nan), axis=1)
        high = np.fmax.reduce(np.where(known, rising.cost, np.nan), axis=1)
        cost = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, PLACES)
        accuracy = np.full(cost.shape, np.nan)
        for row in np.flatnonzero(known.any(axis=1)):
            here = known[row]
            accuracy[row] = np.interp(cost[row], rising.cost[row, here], rising.accuracy[row, here])
        # Several settings may be the cheapest or the dearest; the most accurate of them counts.
        room = _SAME * high
        for place, end in ((0, low + room), (-1, high - room)):
            at_end = rising.cost <= end[:, None] if place == 0 else rising.cost >= end[:, None]
            accuracy[:, place] = np.fmax.reduce(np.where(at_end, rising.accuracy, np.nan), axis=1)
        return cls(points, rising, cost, accuracy)


@final
@dataclass(frozen=True, eq=False)
class ComparedSystems:
    """What a system is compared with, in each resample.

    Attributes:
        max_cost: The largest cost of any setting of any system, US dollars; NaN where unknown.
        cost: Of every single target, and the costs at which every system is read, US dollars.
        accuracy: Of the same.
    """

    max_cost: PerResample
    cost: PerPoint
    accuracy: PerPoint

    @classmethod
    def of(
        cls, singles: Points, systems: Sequence[CurveReading], *, max_cost: float | None = None
    ) -> "ComparedSystems":
        """What these systems make together.

        Args:
            singles: The single targets.
            systems: Every system.
            max_cost: Taken instead of the largest cost, if given.
        """
        largest = np.stack([np.fmax.reduce(one.points.cost, axis=1) for one in systems])
        top = np.fmax.reduce(largest) if max_cost is None else np.full(len(singles.cost), max_cost)
        return cls(
            top,
            np.concatenate([singles.cost, *(one.cost for one in systems)], axis=1),
            np.concatenate([singles.accuracy, *(one.accuracy for one in systems)], axis=1),
        )


def pareto_distance(own: CurveReading, among: ComparedSystems, anchors: Anchors) -> PerResample:
    """The mean distance of the curve to the nearest undominated point.

    In the plane of linear cost and normalised accuracy; NaN where that isn't defined.
    """
    front_x, front_y = _front(
        anchors.cheapness(among.cost, axis="linear"), anchors.height(among.accuracy)
    )
    x, y = anchors.cheapness(own.cost, axis="linear"), anchors.height(own.accuracy)
    across = x[:, :, None] - front_x[:, None, :]
    up = y[:, :, None] - front_y[:, None, :]
    nearest = np.sqrt(np.fmin.reduce(across * across + up * up, axis=2))
    known = ~np.isnan(nearest)
    total = np.where(known, nearest, 0).sum(axis=1)
    return divide(total, known.sum(axis=1).astype(np.float64))


def _front(
    x: PerPoint, y: PerPoint
) -> tuple[
    Float[NDArray[np.float64], "resample undominated"],
    Float[NDArray[np.float64], "resample undominated"],
]:
    """The undominated points, filled up with NaN; x is cheapness, so more is better."""
    known = np.isfinite(x) & np.isfinite(y)
    keys = (np.where(known, -y, np.inf), np.where(known, -x, np.inf))
    order = np.lexsort(keys, axis=1)
    x, y = np.take_along_axis(x, order, axis=1), np.take_along_axis(y, order, axis=1)
    height = np.where(np.take_along_axis(known, order, axis=1), y, -np.inf)
    best = np.maximum.accumulate(height, axis=1)
    on = height > -np.inf
    on[:, 1:] &= height[:, 1:] > best[:, :-1]
    width = max(1, int(on.sum(axis=1).max(initial=0)))
    place = np.argsort(~on, axis=1, kind="stable")[:, :width]
    kept = np.take_along_axis(on, place, axis=1)
    xs, ys = (np.where(kept, np.take_along_axis(v, place, axis=1), np.nan) for v in (x, y))
    return xs, ys


_SAME = 1e-12
_WEIGHT = 0.1
_CLAMP = (0.0044, 200.0)
"""RouterArena: how much cost weighs, and its range in US dollars per 1,000 queries."""


@final
@dataclass(frozen=True, eq=False)
class ExternalInputs:
    """What these numbers are made of, in each resample.

    Attributes:
        own: The system's operating points.
        singles: Each single target.
        anchors: What 0 and 1 mean in the normalised plane.
        among: What the system is compared with.
        end_accuracy: At the policy's most accurate end.
        end_cost: At the same end, US dollars.
    """

    own: CurveReading
    singles: Points
    anchors: Anchors
    among: ComparedSystems
    end_accuracy: PerResample
    end_cost: PerResample


def external_metrics(what: ExternalInputs) -> dict[str, PerResample]:
    """Every number but those of a strong and a weak target, in no particular order."""
    return {
        "mix_gain": mix_gain(what.own.rising, what.singles),
        "aiq": aiq(what.own.rising, what.among.max_cost),
        **gains(what),
        "pareto_dist": pareto_distance(what.own, what.among, what.anchors),
        "router_arena": router_arena(what.end_accuracy, what.end_cost),
        "blueprint_area": blueprint_area(what.own.rising, what.anchors),
    }


def mix_gain(points: Points, singles: Points) -> PerResample:
    """The curve's mean height over the best fixed mix, over the costs that both reach.

    Args:
        points: By rising cost, of unknown cost last.
        singles: Each single target.
    """
    cost, accuracy = envelope(singles.cost, singles.accuracy)
    low = np.fmax(np.fmin.reduce(points.cost, axis=1), np.fmin.reduce(singles.cost, axis=1))
    dearest = np.fmax.reduce(singles.cost, axis=1)
    high = np.fmin(np.fmax.reduce(points.cost, axis=1), dearest)
    high = np.where(high - low > _SAME * np.abs(high), high, np.nan)
    own = area(points.cost, points.accuracy, low, high)
    # The mix is level from its last corner to the dearest target.
    cost = np.concatenate([cost, np.fmax(cost[:, -1:], dearest[:, None])], axis=1)
    accuracy = np.concatenate([accuracy, accuracy[:, -1:]], axis=1)
    return divide(own - area(cost, accuracy, low, high), high - low)


def aiq(points: Points, max_cost: PerResample) -> PerResample:
    """RouterBench: the area under the envelope up to the largest cost, divided by that cost."""
    cost, accuracy = envelope(points.cost, points.accuracy)
    cost = np.concatenate([cost, np.fmax(cost[:, -1:], max_cost[:, None])], axis=1)
    accuracy = np.concatenate([accuracy, accuracy[:, -1:]], axis=1)
    under = area(cost, accuracy, cost[:, 0], np.fmax(max_cost, cost[:, 0]))
    return divide(np.where(np.isnan(cost[:, 0]), np.nan, under), max_cost)


def gains(what: ExternalInputs) -> dict[str, PerResample]:
    """LLMRouterBench's relative gains, and the random target that they need."""
    accuracy, cost = what.singles.accuracy, what.singles.cost
    best = np.fmax.reduce(accuracy, axis=1)
    random = _mean(accuracy)
    top = np.fmax.reduce(what.own.points.accuracy, axis=1)
    oracle = what.anchors.ceiling
    as_good = accuracy >= (best - _SAME)[:, None]
    price = np.fmin.reduce(np.where(as_good, cost, np.nan), axis=1)
    keeping = what.own.points.accuracy >= (best - _SAME)[:, None]
    paid = np.fmin.reduce(np.where(keeping, what.own.points.cost, np.nan), axis=1)
    saved = divide(price - np.fmin(paid, price), price)
    return {
        "random_accuracy": random,
        "random_cost": _mean(cost),
        "gain_random": divide(what.end_accuracy - random, random),
        "gain_best": divide(what.end_accuracy - best, best),
        "gap_oracle": divide(oracle - what.end_accuracy, oracle),
        "perf_gain": divide(top - best, best),
        "cost_save": saved,
    }


def router_arena(accuracy: PerResample, cost: PerResample) -> PerResample:
    """RouterArena's score of one accuracy at one cost, US dollars per query."""
    low, high = (float(np.log2(end)) for end in _CLAMP)
    cheapness = (high - np.log2(np.clip(1000 * cost, *_CLAMP))) / (high - low)
    together = (1 + _WEIGHT) * accuracy * cheapness
    parts = _WEIGHT * accuracy + cheapness
    return np.where(parts == 0, 0, divide(together, parts))


def blueprint_area(points: Points, anchors: Anchors) -> PerResample:
    """NVIDIA's blueprint: the area of accuracy over the worst target's, over linear price."""
    cheapness = anchors.cheapness(points.cost, axis="linear")
    return padded_area(cheapness, points.accuracy - anchors.floor[:, None])


def _mean(values: Float[NDArray[np.float64], "resample target"]) -> PerResample:
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=1)
    return divide(total, known.sum(axis=1).astype(np.float64))
