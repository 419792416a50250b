"""The numbers that other benchmarks of routers quote; `catalogue_elsewhere` says what they are."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.area import Anchors, padded_area
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.envelope import area, envelope
from prefill_router.evaluation.pareto import Among, Reading, pareto_distance
from prefill_router.evaluation.weighted import PerResample, divide

_SAME = 1e-12
_WEIGHT = 0.1
_CLAMP = (0.0044, 200.0)
"""RouterArena: how much cost weighs, and its range in US dollars per 1,000 queries."""


@final
@dataclass(frozen=True, eq=False)
class Material:
    """What these numbers are made of, in each resample.

    Attributes:
        own: The system's operating points.
        singles: Each single target.
        anchors: What 0 and 1 mean in the normalised plane.
        among: What the system is compared with.
        end_accuracy: At the policy's most accurate end.
        end_cost: At the same end, US dollars.
    """

    own: Reading
    singles: Points
    anchors: Anchors
    among: Among
    end_accuracy: PerResample
    end_cost: PerResample


def elsewhere(what: Material) -> dict[str, PerResample]:
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


def gains(what: Material) -> dict[str, PerResample]:
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
