"""What a study of learning curves found."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.evaluation.bootstrap import LEVEL, Estimate, plain
from prefill_router.studies.fitted import Failed
from prefill_router.studies.learning.numbers import NUMBERS, Number
from prefill_router.studies.learning.power import PowerLaw
from prefill_router.studies.learning.thinning import Size

Verdict = Literal["more labels help", "more labels won't help", "can't tell"]
STEP = 0.01
"""One point: of accuracy, of headroom, of AUC or of Brier score."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SizePoint:
    """A router learned from less.

    Attributes:
        size: How much.
        queries: Labelled queries that were trained on.
        labels: Measured outcomes of them, mean over the draws.
        numbers: The mean over the draws, with intervals of draws and test queries together.
        draws: Each draw's own numbers; NaN where a fit failed.
    """

    size: Size
    queries: int
    labels: float
    numbers: Mapping[Number, Estimate]
    draws: Mapping[Number, tuple[float, ...]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "share": self.size.share,
            "measured": self.size.measured,
            "queries": self.queries,
            "labels": self.labels,
            "numbers": {name: one.to_dict() for name, one in self.numbers.items()},
            "draws": {name: [plain(v) for v in values] for name, values in self.draws.items()},
        }


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Trend:
    """How one number goes on with more labelled queries.

    Attributes:
        law: The power law of its error; None where too few sizes are known.
        per_doubling: What doubling the labels brought over the upper sizes, as an improvement;
            measured, and not the law's.
        next_doubling: What the law expects of the next doubling, as an improvement.
        explained: R squared of the law on the sizes.
        held_out: The largest size's error minus what a law of the other sizes predicts.
        labels_for_step: How many labels in all the law asks for `STEP` more; infinite for never.
        why_poor: Why the law isn't to be trusted; empty where nothing speaks against it.
    """

    law: PowerLaw | None
    per_doubling: Estimate
    next_doubling: Estimate
    explained: float
    held_out: Estimate
    labels_for_step: Estimate
    why_poor: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None also for labels without end."""
        return {
            "law": None if self.law is None else self.law.to_dict(),
            "per_doubling": self.per_doubling.to_dict(),
            "next_doubling": self.next_doubling.to_dict(),
            "explained": plain(self.explained),
            "held_out": self.held_out.to_dict(),
            "labels_for_step": self.labels_for_step.to_dict(),
            "never": math.isinf(self.labels_for_step.value),
            "why_poor": self.why_poor,
        }


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """The learning curves of one recipe.

    Attributes:
        name: Its name.
        points: Every size, shares of the queries first.
        trends: By number, over shares of the queries.
        spread: By number: how much better the same labels are as few targets each of all queries
            than as all targets of few queries, averaged over the sizes where both are known.
        verdict: Whether more labels help.
        because: The reason.
        failed: The fits that couldn't be made.
    """

    name: str
    points: tuple[SizePoint, ...]
    trends: Mapping[Number, Trend]
    spread: Mapping[Number, Estimate]
    verdict: Verdict
    because: str
    failed: tuple[Failed, ...]

    @property
    def queries_axis(self) -> tuple[SizePoint, ...]:
        """Shares of the queries with every measured target, by rising size."""
        return tuple(p for p in self.points if p.size.measured is None)

    @property
    def targets_axis(self) -> tuple[SizePoint, ...]:
        """All queries with so many targets measured, by rising size; all of them last."""
        few = [p for p in self.points if p.size.measured is not None]
        return (*few, *(p for p in self.points if p.size == Size()))

    @property
    def full(self) -> SizePoint:
        """With all labels."""
        return next(p for p in self.points if p.size == Size())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "verdict": self.verdict,
            "because": self.because,
            "points": [point.to_dict() for point in self.points],
            "trends": {name: trend.to_dict() for name, trend in self.trends.items()},
            "spread": {name: one.to_dict() for name, one in self.spread.items()},
            "failed": {one.name: one.why for one in self.failed},
        }


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Learning:
    """Learning curves of several recipes on the same test queries.

    Attributes:
        curves: By recipe.
        queries: Labelled queries there are to learn from.
        labels: Measured outcomes of them.
        targets: The targets' names.
        tested: How many queries were judged.
        label_cost: The mean observed cost of one outcome, US dollars; NaN where unknown.
        draws: How often each size was drawn.
        resamples: How many resamples the intervals come from.
        seed: Of everything that was drawn.
    """

    curves: Mapping[str, Curve]
    queries: int
    labels: int
    targets: tuple[str, ...]
    tested: int
    label_cost: float
    draws: int
    resamples: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "routers": {name: curve.to_dict() for name, curve in self.curves.items()},
            "numbers": list(NUMBERS),
            "queries": self.queries,
            "labels": self.labels,
            "targets": list(self.targets),
            "tested": self.tested,
            "label_cost": plain(self.label_cost),
            "draws": self.draws,
            "bootstrap": {
                "resamples": self.resamples,
                "seed": self.seed,
                "level": LEVEL,
                "unit": "query and draw",
                "interval": "percentile",
            },
        }
