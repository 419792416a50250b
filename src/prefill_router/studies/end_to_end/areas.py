"""Whether P-AUCCC changes when the encoder is charged.

The encoder is paid for every query at every setting, so its mean cost moves each operating point of
a router by the same amount. Two readings of the plane are possible then:

`charged`
    The anchors stay the single targets' mean costs, since nobody who asks one target alone pays for
    an encoder. This is what a user's bill says.
`translated`
    The anchors move by the same amount, as where the paper translates the whole curve. With linear
    cost this changes nothing at all; with inverse cost it changes a little.
"""

from dataclasses import dataclass, replace
from typing import final

from prefill_router.evaluation.area import Anchors, Axis, padded_area
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.scores import Scorer, single_points
from prefill_router.evaluation.weighted import PerResample, Weights, known_mean, mean_over
from prefill_router.studies.end_to_end.contender import Contender

AXES: tuple[Axis, ...] = ("inverse", "linear")


@final
@dataclass(frozen=True, eq=False)
class Plane:
    """A contender's curve, sorted once.

    Attributes:
        contender: Whose.
        scorer: Its trial, sorted.
    """

    contender: Contender
    scorer: Scorer

    @classmethod
    def of(cls, contender: Contender) -> "Plane":
        """Sort a contender's trial."""
        return cls(contender, Scorer.of(contender.trial))

    def areas(self, weights: Weights) -> dict[str, PerResample]:
        """P-AUCCC in each resample, by reading and axis: `p_auccc`, `charged`, `translated`."""
        trial = self.contender.trial
        weights = weights * trial.compared
        points = self.scorer.read(weights).rising
        singles = single_points(
            known_mean(weights, trial.single_label), known_mean(weights, trial.single_cost)
        )
        anchors = Anchors.of(singles.cost, singles.accuracy, mean_over(weights, trial.best_label))
        extra = mean_over(weights, self.contender.encoder_cost)
        dearer = replace(points, cost=points.cost + extra[:, None])
        moved = replace(
            anchors, cost_low=anchors.cost_low + extra, cost_high=anchors.cost_high + extra
        )
        found = {}
        for axis in AXES:
            end = "" if axis == "inverse" else "_linear"
            found[f"p_auccc{end}"] = _area(points, anchors, axis)
            found[f"charged{end}"] = _area(dearer, anchors, axis)
            found[f"translated{end}"] = _area(dearer, moved, axis)
        return found


def _area(points: Points, anchors: Anchors, axis: Axis) -> PerResample:
    return padded_area(anchors.cheapness(points.cost, axis=axis), anchors.height(points.accuracy))
