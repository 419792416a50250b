"""A cascade whose order, thresholds and scorer are learned from train rows (FrugalGPT)."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy.cascade import AnswerScorer, Cascade
from prefill_router.policy.path import PerCell
from prefill_router.policy.stages import Stages, search_stages
from prefill_router.serialization import Part
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True)
class FrugalFit:
    """A learned cascade, with notes on it.

    Attributes:
        policy: The learned cascade.
        notes: Notes for the user.
    """

    policy: Cascade
    notes: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class FrugalCascade(Part):
    """The options of a cascade to be learned.

    Attributes:
        depth: The most targets that are called for a query.
        budget: Mean US dollars per query for which order and thresholds are optimised; None to
            optimise the mean over all budgets.
        steps: The number of thresholds that are tried for each target.
        folds: The number of folds of the out-of-fold predictions.

    Raises:
        ConfigError: An option is invalid.
    """

    kind: ClassVar[str] = "frugal_cascade"
    noun: ClassVar[str] = "policy"
    depth: int = 3
    budget: float | None = None
    steps: int = 20
    folds: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 4:
            raise ConfigError(f"depth is {self.depth}; a cascade can have 1 to 4 targets")
        if not 2 <= self.steps <= 50 or not 2 <= self.folds <= 20:
            raise ConfigError(
                f"steps is {self.steps} and folds {self.folds}; give 2 to 50, and 2 to 20"
            )
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise ConfigError(f"budget is {self.budget}; it must be positive, US dollars per query")

    def fit(
        self,
        correctness: PerCell,
        correct: PerCell,
        cost: PerCell,
        tokens: PerCell,
        folds: Int[NDArray[np.int64], " query"],
        *,
        targets: tuple[str, ...],
    ) -> FrugalFit:
        """Learn a cascade from train rows.

        Args:
            correctness: Out-of-fold predictions.
            correct: Labels in [0, 1]; NaN where missing.
            cost: Costs of the answers, US dollars; NaN where unknown.
            tokens: Output tokens of the answers; NaN where unknown.
            folds: The fold of each row; its answers are scored by a scorer fitted on the others.
            targets: The names of the columns.

        Raises:
            FitError: No query has a label and a cost, all answers are free, or no target is within
                the budget.
        """
        scores = np.empty(correctness.shape)
        for fold in np.unique(folds).tolist():
            held, fitted = folds == fold, folds != fold
            scorer = AnswerScorer.fit(
                correctness[fitted], tokens[fitted], correct[fitted], targets=targets
            )
            scores[held] = scorer.scores(correctness[held], tokens[held], targets=targets)
        found = search_stages(
            scores, correct, cost, depth=self.depth, budget=self.budget, steps=self.steps
        )
        scorer = AnswerScorer.fit(correctness, tokens, correct, targets=targets)
        names = tuple(targets[k] for k in found.columns)
        policy = Cascade(targets=names, knots=found.knots, scorer=scorer)
        return FrugalFit(policy, _notes(found, names, targets))


def _notes(found: Stages, names: tuple[str, ...], targets: tuple[str, ...]) -> tuple[str, ...]:
    low, high = found.costs
    said = [
        f"the cascade calls {', then '.join(names)}; on {found.queries:,} train queries it was "
        f"right on {found.accuracies[0]:.1%} for ${low:.3g} a query at lam = 0, and on "
        f"{found.accuracies[1]:.1%} for ${high:.3g} at lam = 1"
    ]
    if found.at is not None:
        said.append(f"it is within its budget at lam = {found.at:.3f} and below")
    if found.left_out:
        lacking = ", ".join(targets[k] for k in found.left_out)
        said.append(f"the cascade leaves out {lacking}, measured on too few of the same queries")
    return tuple(said)
