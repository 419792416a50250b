"""The value of a router at every lam, and of single targets, from labels that chance selected.

Two estimates stand side by side, each with its 95 % interval. The doubly robust one is the mean of
the estimates that a `Trial` holds; it is the one that verdicts and metrics use. Inverse propensity
weighting (Hajek's ratio) takes the observed labels alone, and no prediction. Where both differ by
more than their intervals, the propensities or the errors of labels are wrong. Intervals come from
the variance of the influence functions, so that those of all operating points are sums along the
exact path. The turns of a conversation count as if they were all alike, which is the most that they
can depend on each other. A point that lacks overlap has no estimate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import Estimate, divide, estimates_to_dict, ones, plain
from prefill_router.evaluation.chance_labels import (
    FLOOR,
    LEAST_EFFECTIVE,
    MOST_LACKING,
    ChanceLabels,
)
from prefill_router.evaluation.curve import PathSums
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.short_repr import short_repr

PerPoint = Float[NDArray[np.float64], " point"]
_WIDE: Final = 1.959964
"""Standard errors from an estimate to the end of its 95 % interval."""


@final
@dataclass(frozen=True)
class PolicyValue:
    """The value of a choice of targets.

    Attributes:
        accuracy: The doubly robust estimate.
        inverse: The estimate by inverse propensity alone.
        cost: Mean cost, US dollars per query; NaN where unknown.
        effective: Effective number of labels.
    """

    accuracy: Estimate
    inverse: Estimate
    cost: float
    effective: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        estimates = {"accuracy": self.accuracy, "by_inverse_propensity": self.inverse}
        values = estimates_to_dict(estimates)
        return {**values, "mean_cost": plain(self.cost), "effective_labels": plain(self.effective)}


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PolicyValues:
    """The values of a system at every lam, and of its targets alone.

    Attributes:
        trial: The system.
        lam: Where the interval of each operating point begins; 0 for the first.
        table: At each point, NaN where overlap is lacking: `accuracy`, doubly robust, and its
            standard `error`; `inverse`, the accuracy by inverse propensity, and `inverse_error`;
            mean `cost`, US dollars per query; and the `effective` number of labels.
        targets: The values of the single targets, by name, of those that don't lack overlap.
    """

    trial: Trial
    lam: PerPoint
    table: Mapping[str, PerPoint]
    targets: Mapping[str, PolicyValue]

    @classmethod
    def of(cls, trial: Trial) -> "PolicyValues":
        """Estimate all values.

        Raises:
            ConfigError: Chance selected none of the labels.
        """
        labels = trial.chance
        if labels is None or not labels.selected:
            raise ConfigError(
                "none of these labels was selected by chance, so there is nothing to "
                "estimate; give the dataset propensities, or use evaluate"
            )
        terms = _compute_terms(trial, labels)

        def values(query: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.ascontiguousarray(terms[query, target])

        sums = PathSums.of(trial, values)
        path = _estimate_points(np.stack([total[0] for total in sums.totals(ones(len(trial)))]))
        single_targets = _estimate_points(terms.sum(axis=0).T)
        return cls(
            trial,
            sums.lam,
            path,
            {
                name: _make_value(single_targets, k)
                for k, name in enumerate(trial.targets)
                if not np.isnan(single_targets["accuracy"][k])
            },
        )

    def __len__(self) -> int:
        return len(self.lam)

    def at(self, lam: float) -> PolicyValue:
        """The value at one lam.

        Raises:
            OverlapError: Overlap is lacking there; it says for which targets, and what would do.
            ConfigError: The lam is outside [0, 1].
        """
        overlap = self.trial.overlap_of([self.trial.path.at(lam)])
        if overlap is not None:
            overlap.check()
        return _make_value(self.table, self._find_place(lam))

    def to_dict(self, lams: Sequence[float]) -> dict[str, Any]:
        """Plain values for JSON: the values at these lam, and of the single targets."""
        places = {f"{lam:g}": self._find_place(lam) for lam in lams}
        by_lam = {lam: _make_value(self.table, at).to_dict() for lam, at in places.items()}
        return {"lam": by_lam, "targets": {n: value.to_dict() for n, value in self.targets.items()}}

    def _find_place(self, lam: float) -> int:
        return len(self) - 1 if lam == 1 else max(int(np.searchsorted(self.lam, lam)) - 1, 0)


def _compute_terms(
    trial: Trial, labels: ChanceLabels
) -> Float[NDArray[np.float64], "query target term"]:
    """What each cell adds to the sums that `_estimate_points` reads."""
    chance = labels.propensity
    lacking = np.zeros(labels.is_known.shape) if chance is None else chance < FLOOR
    label, weight = np.nan_to_num(trial.correct), labels.weight
    observed, paid = np.nan_to_num(labels.corrected) * weight, trial.paid
    # The square of a sum of n numbers is at most n times the sum of their squares.
    turns = np.ones((len(trial), 1)) if labels.turns is None else labels.turns[:, None]
    terms = [
        labels.usable,
        lacking,
        label,
        turns * labels.usable,
        turns * label,
        turns * label**2,
        weight,
        turns * weight**2,
        observed,
        turns * observed * weight,
        turns * observed**2,
    ]
    return np.stack([*terms, np.nan_to_num(paid), ~np.isnan(paid)], axis=2).astype(np.float64)


def _estimate_points(sums: Float[NDArray[np.float64], "term point"]) -> dict[str, PerPoint]:
    count, lacking, label, counts, labels, square = sums[:6]
    weight, weights, observed, product, observed_square, paid, priced = sums[6:]
    effective = divide(weight**2, weights)
    good = (lacking <= MOST_LACKING * (count + lacking)) & (effective >= LEAST_EFFECTIVE)
    mean = divide(label, count)
    spread = np.maximum(square - 2 * mean * labels + mean**2 * counts, 0)
    inverse = divide(observed, weight)
    own = np.maximum(observed_square - 2 * inverse * product + inverse**2 * weights, 0)
    numbers = {
        "accuracy": mean,
        "error": divide(np.sqrt(spread), count),
        "inverse": inverse,
        "inverse_error": divide(np.sqrt(own), weight),
        "cost": divide(paid, priced),
    }
    good_alone = {name: np.where(good, values, np.nan) for name, values in numbers.items()}
    return {**good_alone, "effective": effective}


def _make_value(table: Mapping[str, PerPoint], place: int) -> PolicyValue:
    accuracy, inverse = (
        _make_interval(float(table[name][place]), float(table[error][place]))
        for name, error in (("accuracy", "error"), ("inverse", "inverse_error"))
    )
    return PolicyValue(
        accuracy, inverse, float(table["cost"][place]), float(table["effective"][place])
    )


def _make_interval(value: float, error: float) -> Estimate:
    reason = "overlap is lacking" if math.isnan(value) else ""
    return Estimate(value, value - _WIDE * error, value + _WIDE * error, reason=reason)
