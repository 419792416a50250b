"""The result of the end-to-end study, as numbers and in sentences."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.evaluation import LEVEL, NOTHING, UNKNOWN, Estimate, Estimates, dollars, worded
from prefill_router.reporting import plain_numbers
from prefill_router.studies.end_to_end.latency import Latency

ROUTER = "router"
Kind = Literal["share", "usd", "seconds"]
NUMBERS: Mapping[str, tuple[str, Kind, str]] = {
    "accuracy": ("Accuracy", "share", "The mean label of the answers."),
    "target_cost": ("Targets, $ per query", "usd", "The observed cost of the targets' answers."),
    "encoder_cost": ("Encoder, $ per query", "usd", "The cost of encoding the query."),
    "total_cost": ("Total, $ per query", "usd", "Targets and encoder together."),
    "encoder_share": (
        "Encoder's share of the cost",
        "share",
        "The encoder's part of the total cost.",
    ),
    "answer_seconds": (
        "Target completion, s",
        "seconds",
        "From the request to the target until the end of its answer, reasoning included.",
    ),
    "routing_seconds": ("Routing, s", "seconds", "The decision, before any target is called."),
    "total_seconds": ("Until the answer, s", "seconds", "Routing and completion together."),
    "routing_share": ("Routing's share of the time", "share", "Routing's part of the total time."),
}
"""The metrics of a system at one setting, by name: heading, unit, meaning."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class EndToEndPoint:
    """All systems at one setting of the routers.

    Attributes:
        lam: The setting; 1 is argmax accuracy.
        systems: The metrics (`NUMBERS`) by system: `router` first, the best single target last.
        against: The router compared with each other system: `savings` (the share of the other's
            total cost that the router saves), `accuracy_gain`, `cost_difference` (US dollars per
            query) and `seconds_difference`, router minus other, paired.
        shares: The share of queries that each target answers, by system.
    """

    lam: float
    systems: Mapping[str, Estimates]
    against: Mapping[str, Estimates]
    shares: Mapping[str, Mapping[str, float]]

    @property
    def title(self) -> str:
        """The name of the setting in tables."""
        return "argmax accuracy" if self.lam == 1 else f"lam = {self.lam:g}"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class EndToEndStudy:
    """Total cost and latency of routing.

    Attributes:
        queries: How many queries were judged.
        best: The single target that everything is compared with.
        points: The settings, argmax first.
        areas: P-AUCCC of each router before and after its encoder is charged (`ChargedPlane`).
        area_difference: Router minus the other router, paired; empty without another.
        latencies: The latency of each router, where known.
        charges: The price of each router's encoder, in words.
        timing: The source of the answers' durations, in words; empty where they are unknown.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the resamples.
    """

    queries: int
    best: str
    points: tuple[EndToEndPoint, ...]
    areas: Mapping[str, Estimates]
    area_difference: Estimates
    latencies: Mapping[str, Latency | None]
    charges: Mapping[str, str]
    timing: str
    resamples: int
    seed: int

    @property
    def routers(self) -> tuple[str, ...]:
        """The routers' names, the studied one first."""
        return tuple(self.areas)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "queries": self.queries,
            "best_single": self.best,
            "points": [_point(point) for point in self.points],
            "p_auccc": {name: plain_numbers(values) for name, values in self.areas.items()},
            "p_auccc_difference": plain_numbers(self.area_difference),
            "latency": {
                name: None if one is None else one.to_dict(resamples=self.resamples, seed=self.seed)
                for name, one in self.latencies.items()
            },
            "charges": dict(self.charges),
            "timing": self.timing,
            "bootstrap": {
                "resamples": self.resamples,
                "seed": self.seed,
                "level": LEVEL,
                "unit": "query",
                "interval": "percentile",
            },
        }


def alone(target: str) -> str:
    """The name in tables of using a single target for all queries."""
    return f"{target} alone"


def _point(point: EndToEndPoint) -> dict[str, Any]:
    return {
        "lam": point.lam,
        "systems": {name: plain_numbers(values) for name, values in point.systems.items()},
        "against": {name: plain_numbers(values) for name, values in point.against.items()},
        "shares": {name: dict(values) for name, values in point.shares.items()},
    }


_SMALL = 5e-4
"""Areas that differ by less are equal to three digits."""


def summary(result: EndToEndStudy) -> list[str]:
    """The result in sentences, for readers who don't know the paper."""
    sentences = [_overhead(result, point) for point in result.points[:1]]
    sentences += [_saved(result, point) for point in result.points]
    return [*sentences, *_waited(result.points[0], result.best), _area(result), *_order(result)]


def _overhead(result: EndToEndStudy, point: EndToEndPoint) -> str:
    numbers = point.systems[ROUTER]
    share, time = numbers["encoder_share"], numbers["routing_share"]
    text = (
        f"Before a router chooses, its encoder reads the query ({result.charges[ROUTER]}). "
        if ROUTER in result.charges
        else "Before a router chooses, its encoder reads the query. "
    )
    cost = (
        f"That is {percent(share)} of the total cost of a query"
        if math.isfinite(share.value)
        else "Its share of the cost is unknown, since the targets' costs are unknown"
    )
    wait = (
        f"the decision takes {percent(time)} of the time until the answer is complete"
        if math.isfinite(time.value)
        else "the decision's share of the time is unknown"
    )
    return f"{text}{cost}, and {wait} ({point.title}, {result.queries:,} queries)."


def _saved(result: EndToEndStudy, point: EndToEndPoint) -> str:
    parts = []
    for name, numbers in point.against.items():
        savings, gain = numbers["savings"], numbers["accuracy_gain"]
        if not math.isfinite(savings.value):
            parts.append(f"{name}: {points(gain)} in accuracy, costs unknown")
            continue
        cheaper = "less" if savings.value >= 0 else "more"
        spread = _between(savings, sign=1 if savings.value >= 0 else -1)
        parts.append(
            f"{abs(100 * savings.value):.1f} % {cheaper} than {name}{spread}, "
            f"at {points(gain)} in accuracy"
        )
    total = result.queries * point.systems[ROUTER]["total_cost"].value
    known = math.isfinite(total)
    cost = f"{dollars(total)} for all {result.queries:,} queries" if known else "an unknown amount"
    start = f"At {point.title} the router costs {cost}, its encoder included"
    return f"{start}: {'; '.join(parts)}."


def _waited(point: EndToEndPoint, best: str) -> list[str]:
    own, single = (
        point.systems[ROUTER]["total_seconds"],
        point.systems[alone(best)]["total_seconds"],
    )
    if not (math.isfinite(own.value) and math.isfinite(single.value)):
        return []
    return [
        f"An answer is complete after {own.value:.3g} s on average, routing included; with "
        f"{alone(best)} after {single.value:.3g} s."
    ]


def _area(result: EndToEndStudy) -> str:
    found = result.areas[ROUTER]
    before, charged, moved = (found[n].value for n in ("p_auccc", "charged", "translated"))
    if not math.isfinite(before):
        return f"P-AUCCC isn't defined here: {found['p_auccc'].reason}."
    change = charged - before
    how = (
        "it stays the same to three digits"
        if abs(change) < _SMALL
        else f"it becomes {charged:.4f} ({change:+.4f})"
    )
    return (
        f"P-AUCCC, the area under the normalised accuracy-cost curve, is {before:.4f} with the "
        f"targets' costs alone. With the encoder charged at every setting, and not to single "
        f"targets, {how}; if the anchors also move by the encoder's cost, as in the paper, it is "
        f"{moved:.4f} with inverse cost and unchanged with linear cost."
    )


def _order(result: EndToEndStudy) -> list[str]:
    if not result.area_difference:
        return []
    before, after = (result.area_difference[name].value for name in ("p_auccc", "charged"))
    if not (math.isfinite(before) and math.isfinite(after)):
        return []
    one, other = result.routers[:2]
    kept = (
        "The order of the two routers by P-AUCCC stays"
        if before * after > 0
        else "Charging the encoders reverses the order of the two routers by P-AUCCC"
    )
    return [f"{kept}: {one} minus {other} is {before:+.4f} before and {after:+.4f} after."]


def number(name: str, estimate: Estimate) -> str:
    """A metric in its unit."""
    if not math.isfinite(estimate.value):
        return UNKNOWN if NUMBERS[name][1] == "usd" else NOTHING
    match NUMBERS[name][1]:
        case "share":
            digits = 1 if name == "accuracy" else 2
            return f"{100 * estimate.value:.{digits}f} %"
        case "usd":
            return f"${estimate.value:.3g}" if estimate.value < 1e-4 else dollars(estimate.value)
        case "seconds":
            return f"{estimate.value:.3g}"


def percent(estimate: Estimate) -> str:
    """A share in percent, with two decimals."""
    return f"{100 * estimate.value:.2f} %"


def points(estimate: Estimate) -> str:
    """A difference of accuracies, with its interval."""
    low, high = estimate.lower, estimate.upper
    text = worded(estimate.value, "points")
    if math.isfinite(low) and math.isfinite(high):
        text += f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return text


def _between(estimate: Estimate, *, sign: int) -> str:
    ends = sorted(100 * sign * end for end in (estimate.lower, estimate.upper))
    return f" ({ends[0]:.1f} to {ends[1]:.1f})" if all(map(math.isfinite, ends)) else ""
