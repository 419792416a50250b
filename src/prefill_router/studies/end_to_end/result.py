"""What the end-to-end study found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.evaluation.bootstrap import LEVEL
from prefill_router.evaluation.evaluation import Estimates
from prefill_router.studies.end_to_end.latency import Latency

ROUTER = "router"
Kind = Literal["share", "usd", "seconds"]
NUMBERS: Mapping[str, tuple[str, Kind, str]] = {
    "accuracy": ("Accuracy", "share", "The mean label of the answers."),
    "target_cost": ("Targets, $ per query", "usd", "What the targets' answers cost, as observed."),
    "encoder_cost": ("Encoder, $ per query", "usd", "What reading the query costs."),
    "total_cost": ("Total, $ per query", "usd", "Both together."),
    "encoder_share": ("Encoder's share of the cost", "share", "The encoder's cost in the total."),
    "answer_seconds": (
        "Target completion, s",
        "seconds",
        "From the request to the target until the end of its answer, reasoning included.",
    ),
    "routing_seconds": ("Routing, s", "seconds", "The decision, before any target is asked."),
    "total_seconds": ("Until the answer, s", "seconds", "Routing and completion together."),
    "routing_share": ("Routing's share of the time", "share", "Routing in the time until the end."),
}
"""The numbers of a use by name: heading, unit, meaning."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Point:
    """Everybody at one setting of the routers.

    Attributes:
        lam: The setting; 1 is argmax accuracy.
        systems: Each one's numbers (`NUMBERS`), by name: `router` first, and the best
            single target last.
        against: The router against each other one: `savings` (the share of the other's total cost
            that the router saves), `accuracy_gain`, `cost_difference` (US dollars per query) and
            `seconds_difference`, router minus other, paired.
        shares: The share of queries that each target answers, by system.
    """

    lam: float
    systems: Mapping[str, Estimates]
    against: Mapping[str, Estimates]
    shares: Mapping[str, Mapping[str, float]]

    @property
    def title(self) -> str:
        """What tables call it."""
        return "argmax accuracy" if self.lam == 1 else f"lam = {self.lam:g}"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class EndToEnd:
    """What routing costs and how long it takes, everything counted.

    Attributes:
        queries: How many queries were judged.
        best: The single target that everything is held against.
        points: The settings, argmax first.
        areas: P-AUCCC of each router before and after its encoder is charged (`areas.Plane`).
        area_difference: Router minus the other router, paired; empty without another.
        latencies: Of each router, where known.
        charges: What each router's encoder is charged at, in words.
        timing: Where the answers' seconds come from, in words; empty where they are unknown.
        resamples: How many resamples the intervals come from.
        seed: What they were drawn with.
    """

    queries: int
    best: str
    points: tuple[Point, ...]
    areas: Mapping[str, Estimates]
    area_difference: Estimates
    latencies: Mapping[str, Latency | None]
    charges: Mapping[str, str]
    timing: str
    resamples: int
    seed: int

    @property
    def routers(self) -> tuple[str, ...]:
        """The routers, the one that the study is about first."""
        return tuple(self.areas)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "queries": self.queries,
            "best_single": self.best,
            "points": [_point(point) for point in self.points],
            "p_auccc": {name: _plain(values) for name, values in self.areas.items()},
            "p_auccc_difference": _plain(self.area_difference),
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
    """What tables call asking a single target for everything."""
    return f"{target} alone"


def _point(point: Point) -> dict[str, Any]:
    return {
        "lam": point.lam,
        "systems": {name: _plain(values) for name, values in point.systems.items()},
        "against": {name: _plain(values) for name, values in point.against.items()},
        "shares": {name: dict(values) for name, values in point.shares.items()},
    }


def _plain(values: Estimates) -> dict[str, Any]:
    return {name: estimate.to_dict() for name, estimate in values.items()}
