"""Labels that chance selected, or that may be wrong, and unbiased estimates made of them.

Traffic has the label of the target that answered, and of those that a draw selected to be asked
beside it. Where the probability of the draw is known, every cell has an estimate whose expectation
is its label, whatever the prediction m (doubly robust; Dudik, Langford and Li 2011,
arXiv:1103.4601):

    m + (z - m) / propensity     where the label was observed
    m                            where it wasn't
    z = (y - e) / (1 - 2 e)      y is wrong with the probability e

A prediction that knows something narrows the intervals; a wrong one only widens them. Single
estimates may lie outside [0, 1]: only their means say something. So they stand in for labels in
every number that is linear in them. What two labels of one query say together (oracle, consensus
regimes, choice AUC) can't be had from them.

Where the labels that a system needs had no chance to be observed, nothing can be estimated, and
`Overlap` says so. A label that was observed for other reasons than chance is left out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import OverlapError
from prefill_router.evaluation.bootstrap import divide, plain
from prefill_router.evaluation.quality_checks import PerCell
from prefill_router.short_repr import short_repr

Cells = Bool[NDArray[np.bool_], "query target"]
Choice = Int[NDArray[np.int64], " query"]
FLOOR: Final = 0.01
"""A cell with a lower propensity counts as one that can't be observed: its weight would exceed that
of a hundred others."""
MOST_LACKING: Final = 0.05
"""Where more than this share of the queries lack overlap, nothing is estimated."""
LEAST_EFFECTIVE: Final = 30.0
"""With a smaller effective number of labels, intervals can't be trusted."""
_LEAST = 20
"""With a smaller effective number of its labels, a target has no mean."""
_FAR = 4
"""So many standard deviations below the expected number of labels aren't chance."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class ChanceLabels:
    """Labels with their errors and propensities, and predictions of them.

    Attributes:
        observed: Labels as they were observed; NaN where not.
        error: The probability that each is wrong; 0 where it is exact.
        propensity: The probability with which each was to be observed; NaN where chance didn't
            decide. None where it never did, so that all that were observed count alike.
        predicted: Predictions that weren't fitted on these labels.
        turns: How many of the queries are of each one's conversation; None where each stands alone.
    """

    observed: PerCell
    error: PerCell
    propensity: PerCell | None
    predicted: PerCell
    turns: Float[NDArray[np.float64], " query"] | None = None

    @classmethod
    def of(cls, dataset: RoutingDataset, predicted: PerCell) -> "ChanceLabels | None":
        """The labels of a dataset; None if all are exact and none was selected by chance."""
        if dataset.label_error is None and dataset.propensity is None:
            return None
        label_error = dataset.label_error
        error = (
            np.zeros(dataset.correct.shape) if label_error is None else np.nan_to_num(label_error)
        )
        turns = _count_turns(dataset.conversations)
        return cls(dataset.correct, error, dataset.propensity, predicted, turns)

    @property
    def selected(self) -> bool:
        """Whether chance selected some of the labels."""
        return self.propensity is not None

    @cached_property
    def is_known(self) -> Cells:
        """Where a label was observed."""
        is_known: Cells = ~np.isnan(self.observed)
        return is_known

    @cached_property
    def usable(self) -> Cells:
        """Where there is an estimate: chance decided, and the label could be observed.

        A label that was certain to be observed, and wasn't, is lost for another reason than chance.
        """
        if self.propensity is None:
            return self.is_known
        usable: Cells = (self.propensity >= FLOOR) & (self.is_known | (self.propensity < 1))
        return usable

    @cached_property
    def weight(self) -> PerCell:
        """Inverse propensities of observed labels; 0 where there is none, or none that counts."""
        counted = self.usable & self.is_known
        chance = np.ones(counted.shape) if self.propensity is None else self.propensity
        return np.where(counted, 1 / np.where(counted, chance, 1), 0.0)

    @cached_property
    def corrected(self) -> PerCell:
        """The observed labels corrected for their errors, right on average; NaN where missing."""
        return (self.observed - self.error) / (1 - 2 * self.error)

    @cached_property
    def label(self) -> PerCell:
        """The doubly robust estimate of each label; NaN where there is none."""
        return self._estimate(self.corrected, self.predicted)

    def cost(self, observed: PerCell, estimated: PerCell) -> PerCell:
        """The same of costs; observed ones as they are where chance didn't select the labels.

        Args:
            observed: Observed costs, US dollars; NaN where unknown.
            estimated: Costs as estimated before the answers.
        """
        if self.propensity is None:
            return observed
        priced = (~np.isnan(observed) & self.is_known).any(axis=0)
        return np.where(priced, self._estimate(observed, estimated), np.nan)

    def _estimate(self, observed: PerCell, predicted: PerCell) -> PerCell:
        off = np.where(np.isnan(observed), 0, observed - predicted)
        return np.where(self.usable, predicted + self.weight * off, np.nan)

    @cached_property
    def bounds(self) -> tuple[PerCell, PerCell]:
        """The lowest and highest values that each estimate can take, known before the draw."""
        worst = self.error.max(axis=0)
        beyond = worst / (1 - 2 * worst)
        chance = np.ones(self.observed.shape) if self.propensity is None else self.propensity
        divisor = np.where(self.usable, chance, 1.0)
        return (
            self.predicted + (-beyond - self.predicted) / divisor,
            self.predicted + (1 + beyond - self.predicted) / divisor,
        )


@final
@dataclass(frozen=True)
class TargetOverlap:
    """How a target's labels came to be observed, on the queries where they are needed.

    Attributes:
        target: The target.
        queries: Number of queries where its label is needed.
        lacking: Number of those where it had no chance to be observed, or next to none.
        unknown: Number of those where chance didn't decide.
        labels: Number of observed labels on the others.
        expected: The number of labels that the propensities let expect.
    """

    target: str
    queries: int
    lacking: int
    unknown: int
    labels: int
    expected: float


@short_repr
@final
@dataclass(frozen=True)
class Overlap:
    """Whether the labels that are needed had a chance to be observed.

    Attributes:
        queries: Number of judged queries.
        lacking: Number of those on which a needed label had no chance to be observed.
        unknown: Number of the others on which chance didn't decide about a needed label.
        effective: Effective number of labels, the least over the judged choices: so many equally
            weighted ones tell as much. All labels of a conversation count as one.
        targets: The same by target, for all that are needed anywhere.
        short: Targets with far fewer labels than their propensities let expect.
    """

    queries: int
    lacking: int
    unknown: int
    effective: float
    targets: tuple[TargetOverlap, ...]
    short: tuple[str, ...]

    @classmethod
    def of(
        cls,
        labels: ChanceLabels,
        names: Sequence[str],
        choices: Sequence[Choice],
        *,
        also: Cells | None = None,
    ) -> "Overlap":
        """Examine the labels of some choices.

        Args:
            labels: The labels.
            names: The targets' names.
            choices: The chosen target of each query, for each judged system.
            also: Other cells that are needed.
        """
        rows = np.arange(len(labels.observed))
        needed = np.zeros(labels.is_known.shape, dtype=np.bool_) if also is None else also.copy()
        weights = [labels.weight[rows, choice] for choice in choices]
        for choice in choices:
            needed[rows, choice] = True
        chance = (
            np.where(labels.is_known, 1.0, 0.0) if labels.propensity is None else labels.propensity
        )
        lacking = needed & (chance < FLOOR)
        unknown = needed & ~labels.usable & ~lacking
        counted = needed & labels.usable
        observed, expected = (counted & labels.is_known).sum(axis=0), np.where(counted, chance, 0)
        spread = np.sqrt((expected * (1 - expected)).sum(axis=0))
        short = expected.sum(axis=0) - observed > _FAR * spread + 0.5
        without = lacking.any(axis=1)
        return cls(
            queries=len(rows),
            lacking=int(without.sum()),
            unknown=int((unknown.any(axis=1) & ~without).sum()),
            effective=min((effective_size(w, labels.turns) for w in weights), default=0.0),
            targets=tuple(
                TargetOverlap(*values)
                for values in zip(
                    names,
                    *(table.sum(axis=0).tolist() for table in (needed, lacking, unknown)),
                    observed.tolist(),
                    expected.sum(axis=0).tolist(),
                    strict=True,
                )
                if values[1]
            ),
            short=tuple(name for name, few in zip(names, short.tolist(), strict=True) if few),
        )

    @property
    def refusal(self) -> str:
        """Why nothing can be estimated, and what would do; empty where it can."""
        if self.lacking > MOST_LACKING * self.queries:
            where = ", ".join(
                f"{target.target} on {target.lacking:,} of {target.queries:,}"
                for target in sorted(self.targets, key=lambda target: -target.lacking)[:4]
                if target.lacking
            )
            return (
                f"{self.lacking:,} of {self.queries:,} queries lack overlap: labels that are "
                f"needed there had no chance to be observed ({where}); ask these targets with some "
                f"probability, at least {FLOOR:g} and better 0.05, on every query, or judge a "
                "router without them"
            )
        if self.effective < LEAST_EFFECTIVE:
            return (
                f"the observed labels tell as much as {self.effective:.0f} equally weighted ones, "
                f"and {LEAST_EFFECTIVE:.0f} are needed; collect more labels, or ask with higher "
                "probabilities"
            )
        return ""

    @property
    def note(self) -> str:
        """What is estimated and what is left out, in sentences."""
        parts = [
            self.refusal or "accuracies and costs are estimates from labels that chance selected"
        ]
        if self.lacking and not self.refusal:
            parts.append(
                f"{self.lacking:,} of {self.queries:,} queries lack overlap and are left out"
            )
        if self.unknown:
            parts.append(
                f"{self.unknown:,} queries are left out, since not chance decided which of their "
                "labels were observed"
            )
        parts += [
            f"{target.target} has {target.labels:,} labels where its propensities let expect "
            f"{target.expected:,.0f}, so some were lost by other reasons than chance"
            for target in self.targets
            if target.target in self.short
        ]
        return "; ".join(parts) + "."

    def check(self) -> None:
        """Check that there is enough overlap.

        Raises:
            OverlapError: There isn't; it says for which targets, and what would do.
        """
        if self.refusal:
            raise OverlapError(self.refusal)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "effective": plain(self.effective), "refusal": self.refusal}


def _count_turns(
    conversations: Sequence[str] | None,
) -> Float[NDArray[np.float64], " query"] | None:
    if conversations is None:
        return None
    _, place, counts = np.unique(np.array(conversations), return_inverse=True, return_counts=True)
    return counts[place].astype(np.float64)


def effective_size(
    weights: Float[NDArray[np.float64], " label"],
    turns: Float[NDArray[np.float64], " label"] | None = None,
) -> float:
    """How many equally weighted labels tell as much; 0 without any.

    Args:
        weights: The weights of the labels.
        turns: The number of labels of each one's conversation, which tell as much as one; None
            where each label is of its own.
    """
    squares = float((weights**2 * (1.0 if turns is None else turns)).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def weighted_means(
    weight: PerCell, label: PerCell, cost: PerCell
) -> tuple[Float[NDArray[np.float64], " target"], Float[NDArray[np.float64], " target"]]:
    """Each target's mean cost and accuracy by inverse propensity (Hajek's estimate).

    NaN for targets with too few labels, or without known costs.

    Args:
        weight: Inverse propensities of the observed labels, 0 for others.
        label: Labels, corrected for their errors.
        cost: Observed costs, US dollars.
    """
    enough = np.array([effective_size(column) >= _LEAST for column in weight.T])
    means = []
    for table in (cost, label):
        counted = np.where(enough & ~np.isnan(table), weight, 0)
        means.append(divide((counted * np.nan_to_num(table)).sum(axis=0), counted.sum(axis=0)))
    return means[0], means[1]
