"""A cascade whose order, thresholds and scorer are learned from train rows (FrugalGPT)."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy.cascade import Cascade
from prefill_router.policy.path import PerCell
from prefill_router.policy.scorer import AnswerScorer
from prefill_router.policy.stages import Stages, search_stages
from prefill_router.serialization import Part
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True)
class FrugalFit:
    """A cascade, and how it came about.

    Attributes:
        policy: It.
        notes: What the reader should know.
    """

    policy: Cascade
    notes: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class FrugalCascade(Part):
    """What a recipe says of a cascade that is learned.

    Attributes:
        depth: How many targets are asked of a query, at most.
        budget: US dollars per query, on average, for which order and thresholds are the best; None
            for those that are best on average over all budgets.
        steps: How many thresholds are tried for each target.
        folds: The predictor is fitted so often to predict rows that it hasn't seen.

    Raises:
        ConfigError: An option makes no sense.
    """

    kind: ClassVar[str] = "frugal_cascade"
    noun: ClassVar[str] = "policy"
    depth: int = 3
    budget: float | None = None
    steps: int = 20
    folds: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 4:
            raise ConfigError(f"depth is {self.depth}; a cascade asks 1 to 4 targets")
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
            correctness: What a predictor said that hadn't seen the row.
            correct: Labels in [0, 1]; NaN where missing.
            cost: Of the answers, US dollars; NaN where unknown.
            tokens: Output tokens of the answers; NaN where unknown.
            folds: The fold of each row; its answers are scored by a scorer of the others.
            targets: The columns.

        Raises:
            FitError: Nothing was measured, nothing costs anything, or no target keeps the budget.
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
        f"the cascade asks {', then '.join(names)}; on {found.queries:,} train queries it was "
        f"right on {found.accuracies[0]:.1%} for ${low:.3g} a query at lam = 0, and on "
        f"{found.accuracies[1]:.1%} for ${high:.3g} at lam = 1"
    ]
    if found.at is not None:
        said.append(f"it keeps its budget at lam = {found.at:.3f} and below")
    if found.left_out:
        lacking = ", ".join(targets[k] for k in found.left_out)
        said.append(f"the cascade leaves out {lacking}, measured on too few of the same queries")
    return tuple(said)
