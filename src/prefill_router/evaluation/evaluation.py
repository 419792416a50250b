"""Everything that an evaluation and a comparison hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.brief import brief
from prefill_router.evaluation.bands import Band
from prefill_router.evaluation.bootstrap import LEVEL, Estimate, plain
from prefill_router.evaluation.coverage import Coverage
from prefill_router.evaluation.mix import MixPoint
from prefill_router.evaluation.operating import Curve, Step
from prefill_router.evaluation.operating_points import OperatingPoints
from prefill_router.evaluation.verdict import Verdict

Estimates = Mapping[str, Estimate]


@brief
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """Every number of one system, each with its interval.

    Attributes:
        verdict: Whether it is worth having; None where the train part wasn't given.
        chosen: The settings that were chosen on train rows; None if there are none.
        queries: How many queries were evaluated.
        labels: How many labels they have.
        coverage: Which of the queries are compared.
        targets: The targets' names.
        headline: By name, see `catalogue.HEADLINE`.
        per_target: By target, then by name, see `catalogue.TARGET`.
        regimes: By consensus regime, then by name, see `catalogue.REGIME`.
        regime_sizes: How many of the compared queries each regime has; the others are `unmeasured`.
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

    verdict: Verdict | None
    chosen: OperatingPoints | None
    queries: int
    labels: int
    coverage: Coverage
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
        """How many queries are compared and what they lack, if that isn't all; else empty."""
        return self.coverage.note

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            **_plain(self.headline),
            "per_target": {name: _plain(values) for name, values in self.per_target.items()},
            "regimes": {
                name: {"queries": count, **_plain(self.regimes.get(name, {}))}
                for name, count in self.regime_sizes.items()
            },
            "operating_points": {
                "count": len(self.curve),
                "max_lam": {"lam_from": self.max_lam[0], "lam_to": self.max_lam[1]},
                "chosen": None if self.chosen is None else self.chosen.to_dict(),
                "by_step": [step.to_dict() for step in self.steps],
            },
            "frontier": list(self.frontier),
            "mix": [point.to_dict() for point in self.mix],
            "anchors": {name: plain(value) for name, value in self.anchors.items()},
            "queries": self.queries,
            "labels": self.labels,
            "coverage": self.coverage.to_dict(),
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
