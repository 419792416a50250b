"""Shrinkage of predictions towards base rates, by factors that are learned out of fold.

    p'[q, k] = b[k] + choice * (p[q, k] - b[k]) + (difficulty - choice) * mean_j(p[q, j] - b[j])

`b` are base rates. The difference between two targets is multiplied by `choice`, since
p'[i] - p'[j] is (1 - choice) * (b[i] - b[j]) + choice * (p[i] - p[j]). The part that all targets
share, the difficulty of the query, is multiplied by `difficulty`, which doesn't affect the choice
under Equation 2. With `choice` 0 the base rates alone decide.

Both factors are slopes of a regression of labels on predictions. The predictors were fitted on
other rows. The regression is within folds: a fold's base rates and those of the other folds are
negatively correlated, which would otherwise make predictions look worse than none. One standard
error, with the labels of a query as one observation, is subtracted, and the result is clipped to
[0, 1].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.errors import ConfigError
from prefill_router.predictors import Correctness, PerTarget
from prefill_router.serialization import Names, Part, Saved
from prefill_router.short_repr import short_repr

Table = Float64[NDArray[np.float64], "query target"]
Share = Annotated[float, Field(ge=0, le=1)]
_LEAST = 1e-12
"""Predictions with a smaller sum of squared deviations count as constant."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Shrinkage(Part):
    """Moves a predictor's probabilities towards base rates.

    Attributes:
        targets: The targets' names, in the order of the columns.
        base: The targets' base rates, see `common_rates`.
        difficulty: The factor of the part that all targets share, from 0 to 1.
        choice: The factor of the differences between targets, from 0 to 1.
    """

    noun: ClassVar[str] = "shrinkage"
    axes: ClassVar[Mapping[str, str]] = {"target": "targets"}
    targets: Names
    base: Annotated[PerTarget, Saved(form=list[Share])]
    difficulty: Share
    choice: Share

    @classmethod
    def fit(
        cls,
        correctness: Table,
        correct: Table,
        folds: Int64[NDArray[np.int64], " query"],
        targets: tuple[str, ...],
    ) -> "Shrinkage":
        """Learn base rates and factors from the train part.

        Args:
            correctness: Predictions of train rows by predictors that weren't fitted on them; NaN
                where there are none.
            correct: Labels in [0, 1], NaN where missing; soft ones as they are.
            folds: The fold in which each row was held out.
            targets: The targets' names.
        """
        base = common_rates(correct)
        is_known = ~np.isnan(correct) & ~np.isnan(correctness)
        predicted, happened = (
            _split_parts(np.where(is_known, table - base, 0), is_known)
            for table in (correctness, correct)
        )
        whole = np.asarray(is_known.any(axis=1, keepdims=True))
        difficulty, choice = (
            _fit_factor(_centre_in_folds(x, part, folds), _centre_in_folds(y, part, folds))
            for x, y, part in zip(predicted, happened, (whole, is_known), strict=True)
        )
        return cls(targets, base, difficulty, choice)

    def shrink(self, correctness: Correctness) -> Correctness:
        """The shrunk predictions, in [0, 1].

        The shared part is bounded for each query so that no prediction leaves [0, 1], which keeps
        the differences between targets.

        Raises:
            ConfigError: The number of columns differs.
        """
        if correctness.shape[1] != len(self.targets):
            raise ConfigError(
                f"the predictions have {correctness.shape[1]} columns; the shrinkage was fitted "
                f"on the {len(self.targets)} targets {list(self.targets)}; give it all of them"
            )
        away = correctness - self.base
        mixed = self.base + self.choice * away
        shift = (self.difficulty - self.choice) * away.mean(axis=1, keepdims=True)
        low, high = -mixed.min(axis=1, keepdims=True), 1 - mixed.max(axis=1, keepdims=True)
        bounded = mixed + np.clip(shift, low, high)
        return np.asarray(np.clip(bounded, 0, 1))  # rounding can leave it slightly outside

    @property
    def words(self) -> str:
        """Both factors, for people."""
        return f"choice x {self.choice:.2f}, difficulty x {self.difficulty:.2f}"


def common_rates(correct: Table) -> PerTarget:
    """Each target's share of right answers, as if all had been measured on the same queries.

    A label is modelled as the target's effect plus the query's, fitted by least squares, with one
    pseudo-label per query that equals the targets' effects. So a target that lacks labels on hard
    queries has no advantage. Without missing labels the result is the plain share. The rule of
    succession is applied; a target without labels gets the share of all labels together.
    """
    is_known = ~np.isnan(correct)
    weight, counts = is_known.astype(np.float64), is_known.sum(axis=0)
    labels = np.where(is_known, correct, 0)
    has_labels = counts > 0
    own = 1 / (weight.sum(axis=1) + 1)
    normal = np.diag(counts.astype(np.float64)) - weight.T @ (weight * own[:, None])
    right = labels.sum(axis=0) - weight.T @ (own * labels.sum(axis=1))
    level = np.zeros(correct.shape[1])
    level[has_labels] = np.linalg.solve(normal[np.ix_(has_labels, has_labels)], right[has_labels])
    has_label = is_known.any(axis=1)
    query = own * (labels - weight * level).sum(axis=1)
    share = np.clip(level + (query[has_label].mean() if has_label.any() else 0), 0, 1)
    total = np.where(has_labels, share * counts, labels.sum())
    return np.asarray((total + 1) / (np.where(has_labels, counts, counts.sum()) + 2))


def _split_parts(
    away: Table, is_known: Bool[NDArray[np.bool_], "query target"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The part that the targets of each query share, as a column, and each target's remainder."""
    shared = away.sum(axis=1, keepdims=True) / np.maximum(is_known.sum(axis=1, keepdims=True), 1)
    return shared, np.where(is_known, away - shared, 0)


def _centre_in_folds(
    values: NDArray[np.float64],
    is_known: NDArray[np.bool_],
    folds: Int64[NDArray[np.int64], " query"],
) -> NDArray[np.float64]:
    """The values minus the mean of their fold and column; 0 where unknown."""
    result = np.zeros_like(values)
    for fold in np.unique(folds):
        rows = folds == fold
        mean = values[rows].sum(axis=0) / np.maximum(is_known[rows].sum(axis=0), 1)
        result[rows] = np.where(is_known[rows], values[rows] - mean, 0)
    return result


def _fit_factor(predicted: NDArray[np.float64], happened: NDArray[np.float64]) -> float:
    """The regression slope minus its standard error, in [0, 1]."""
    squares = float((predicted**2).sum())
    if squares < _LEAST:
        return 0.0
    slope = float((predicted * happened).sum()) / squares
    scores = ((happened - slope * predicted) * predicted).sum(axis=1)
    error = float(np.sqrt((scores**2).sum())) / squares
    return float(np.clip(slope - error, 0, 1))
