"""Everything that an evaluation and a comparison hold."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.brief import brief
from prefill_router.evaluation.bands import Band
from prefill_router.evaluation.bootstrap import LEVEL, Estimate, plain
from prefill_router.evaluation.mix import MixPoint
from prefill_router.evaluation.operating import Curve, Step

Estimates = Mapping[str, Estimate]
_FEW = 1.5
"""Labels a query; with fewer, most have but one."""


@brief
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """Every number of one system, each with its interval.

    Attributes:
        queries: How many queries were evaluated.
        labels: How many labels they have.
        targets: The targets' names.
        headline: By name, see `catalogue.HEADLINE`.
        per_target: By target, then by name, see `catalogue.TARGET`.
        regimes: By consensus regime, then by name, see `catalogue.REGIME`.
        regime_sizes: How many queries each regime has; those without any label are `unmeasured`.
        anchors: `cost_low`, `cost_high` (US dollars), `floor`, `ceiling` of the normalised plane.
        curve: Every exact operating point.
        max_lam: The interval of lam on which the highest accuracy is reached at the lowest cost.
        steps: The paper's lambda table.
        frontier: The targets on the Pareto frontier of single targets, as they are in the pool.
        raw_band: Accuracy against mean cost.
        normalised_band: Normalised accuracy against normalised cost.
        mix: The targets whose fixed mixes are the best at each cost, by rising cost.
        resamples: How many resamples the intervals come from.
        seed: What they were drawn with.
        definitions: The readings that were used, by subject.
    """

    queries: int
    labels: int
    targets: tuple[str, ...]
    headline: Estimates
    per_target: Mapping[str, Estimates]
    regimes: Mapping[str, Estimates]
    regime_sizes: Mapping[str, int]
    anchors: Mapping[str, float]
    curve: Curve
    max_lam: tuple[float, float]
    steps: tuple[Step, ...]
    frontier: tuple[str, ...]
    raw_band: Band
    normalised_band: Band
    mix: tuple[MixPoint, ...]
    resamples: int
    seed: int
    definitions: Mapping[str, str]

    @property
    def caution(self) -> str:
        """Why accuracies can hardly be compared, as a sentence; empty where they can.

        With about one label a query, each target is judged on queries of its own, and the oracle
        is whoever was asked.
        """
        measured = self.queries - self.regime_sizes.get("unmeasured", 0)
        each = self.labels / measured if measured else math.inf
        if each >= _FEW or len(self.targets) < 2:
            return ""
        return (
            f"A query that has labels has {each:.2f} of them on average, so targets are judged on "
            "different queries and the oracle can hardly choose: accuracies of targets, router and "
            "oracle don't compare. Judge on queries that several targets have answered."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            **_plain(self.headline),
            "per_target": {name: _plain(values) for name, values in self.per_target.items()},
            "regimes": {
                name: {"queries": count, **_plain(self.regimes.get(name, {}))}
                for name, count in self.regime_sizes.items()
            },
            "operating_points": {
                "count": len(self.curve),
                "max_lam": {"lam_from": self.max_lam[0], "lam_to": self.max_lam[1]},
                "by_step": [step.to_dict() for step in self.steps],
            },
            "frontier": list(self.frontier),
            "mix": [point.to_dict() for point in self.mix],
            "anchors": {name: plain(value) for name, value in self.anchors.items()},
            "queries": self.queries,
            "labels": self.labels,
            "caution": self.caution,
            "targets": list(self.targets),
            "bootstrap": {
                "resamples": self.resamples,
                "seed": self.seed,
                "level": LEVEL,
                "unit": "query",
                "interval": "percentile",
            },
            "definitions": dict(self.definitions),
        }


@brief
@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Differences of two systems on the same queries, first minus second, paired.

    Attributes:
        first: The first system's numbers, by name.
        second: The second's.
        difference: First minus second, with the interval of the paired differences.
    """

    first: Mapping[str, float]
    second: Mapping[str, float]
    difference: Estimates

    def significant(self, name: str) -> bool:
        """Whether the interval of a difference leaves zero out."""
        estimate = self.difference[name]
        return estimate.lower > 0 or estimate.upper < 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            name: {
                "first": plain(self.first[name]),
                "second": plain(self.second[name]),
                "difference": estimate.to_dict(),
                "significant": self.significant(name),
            }
            for name, estimate in self.difference.items()
        }


def _plain(values: Estimates) -> dict[str, Any]:
    return {name: estimate.to_dict() for name, estimate in values.items()}
