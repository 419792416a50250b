"""Scores of targets that are learned from votes: a Bradley-Terry model with features.

A vote is a query with the labels of two targets: 1 and 0, or a half each for a tie. Target a wins
against target b on a query with the features z with the probability

    sigmoid(score_a - score_b),   score_t = strength_t + w_t . z,

so only differences are learned (Bradley and Terry 1952; RouteLLM learns from Chatbot Arena's votes
in the same way, Ong and others 2024). The weights w have a normal prior, which pulls towards the
strengths alone. Each strength has one vote more, a tie with the average target, so that a target
that wins every vote has a finite strength.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray
from scipy.special import expit

from prefill_router.errors import FitError
from prefill_router.predictors.base import Labels
from prefill_router.statistics import cross_entropy

Inputs = Float64[NDArray[np.float64], "vote feature"]
Strengths = Float64[NDArray[np.float64], " target"]
PerVote = Float64[NDArray[np.float64], " vote"]
PRECISE: Final = 1e-10
"""The relative change of the loss at which the search for its minimum ends."""
_SLOPE: Final = 1e-3
"""The slope of the loss, in nats summed over votes, at which it ends too."""


@final
@dataclass(frozen=True, eq=False)
class Votes:
    """Votes between two targets each.

    Attributes:
        row: The row of the labels that each vote is from.
        first: The column of one of its targets.
        second: The column of the other.
        outcome: 1 where the first one won, 0 where it lost, a half for a tie.
        targets: How many targets there are.
    """

    row: Int64[NDArray[np.int64], " vote"]
    first: Int64[NDArray[np.int64], " vote"]
    second: Int64[NDArray[np.int64], " vote"]
    outcome: PerVote
    targets: int

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of(cls, labels: Labels) -> "Votes":
        """The votes in a table of labels; a row without any label has none.

        Args:
            labels: [query, target], from 0 to 1, NaN where missing.

        Raises:
            FitError: A row has another number of labels than two, or their sum isn't 1.
        """
        present = ~np.isnan(labels)
        count = present.sum(axis=1)
        wrong = np.flatnonzero((count != 0) & (count != 2))
        if len(wrong):
            raise FitError(
                f"row {wrong[0]} has {count[wrong[0]]} labels; a vote has those of the two targets "
                "that were compared: import each vote as a query of its own"
            )
        row = np.flatnonzero(count == 2)
        columns = np.nonzero(present[row])[1].reshape(-1, 2)
        first, second = columns[:, 0], columns[:, 1]
        outcome, opposite = labels[row, first], labels[row, second]
        uneven = np.flatnonzero(np.abs(outcome + opposite - 1) > 1e-9)
        if len(uneven):
            place = uneven[0]
            raise FitError(
                f"the labels of row {row[place]} are {outcome[place]:g} and {opposite[place]:g}; "
                "those of a vote are 1 and 0, or 0.5 each for a tie"
            )
        return cls(row, first, second, outcome, labels.shape[1])

    def __getitem__(self, rows: Bool[NDArray[np.bool_], " vote"]) -> "Votes":
        return Votes(
            self.row[rows], self.first[rows], self.second[rows], self.outcome[rows], self.targets
        )

    @property
    def counts(self) -> Int64[NDArray[np.int64], " target"]:
        """How many votes each target is in."""
        pairs = np.concatenate([self.first, self.second])
        return np.bincount(pairs, minlength=self.targets)

    def differences(self, scores: Float64[NDArray[np.float64], "vote target"]) -> PerVote:
        """The score of the first target minus that of the second."""
        votes = np.arange(len(self))
        ahead: PerVote = scores[votes, self.first] - scores[votes, self.second]
        return ahead

    def label_of_pick(self, scores: Float64[NDArray[np.float64], "vote target"]) -> PerVote:
        """The label of the target with the higher score in each vote; a half where they are equal.

        Args:
            scores: Every target's score on the query of each vote.
        """
        ahead = self.differences(scores)
        return _of_pick(ahead, self.outcome, 1 - self.outcome)

    def of_pick(
        self,
        scores: Float64[NDArray[np.float64], "vote target"],
        values: Float64[NDArray[np.float64], "vote target"],
    ) -> PerVote:
        """The value of the target with the higher score; the mean of both where they are equal."""
        votes = np.arange(len(self))
        each = values[votes, self.first], values[votes, self.second]
        return _of_pick(self.differences(scores), *each)


def _of_pick(ahead: PerVote, first: PerVote, second: PerVote) -> PerVote:
    picked: PerVote = np.where(ahead > 0, first, second)
    return np.where(ahead == 0, (first + second) / 2, picked)


@final
@dataclass(frozen=True, eq=False)
class PairScores:
    """Every target's score as a linear function of the features.

    Attributes:
        weights: The weights of the features.
        strengths: The scores where all features are zero, in log-odds; their mean is zero.
    """

    weights: Float64[NDArray[np.float64], "feature target"]
    strengths: Strengths

    def scores(self, inputs: Inputs) -> Float64[NDArray[np.float64], "vote target"]:
        """Every target's score, in log-odds against the average target."""
        scores: NDArray[np.float64] = inputs @ self.weights + self.strengths
        return scores

    def loss(self, votes: Votes, inputs: Inputs) -> float:
        """The summed cross-entropy of votes, in nats."""
        return float(cross_entropy(votes.differences(self.scores(inputs)), votes.outcome).sum())


def fit_strengths(votes: Votes) -> Strengths:
    """The strengths of a Bradley-Terry model without features, in log-odds; their mean is zero."""
    return fit_scores(votes, np.zeros((len(votes), 0)), c=1.0).strengths


def fit_scores(
    votes: Votes,
    inputs: Inputs,
    *,
    c: float,
    start: PairScores | None = None,
    tolerance: float = PRECISE,
) -> PairScores:
    """Fit a Bradley-Terry model with features.

    Args:
        votes: The votes.
        inputs: The scaled features of each vote's query.
        c: The inverse of the strength of the weights' prior, as in scikit-learn.
        start: The scores to begin from, to be quicker.
        tolerance: The relative change of the loss at which the search for its minimum ends.

    Raises:
        FitError: The fit doesn't converge.
    """
    from scipy.optimize import minimize  # only fitting needs it

    width, targets = inputs.shape[1], votes.targets
    places, spread = np.arange(len(votes)), float(np.sqrt(c))

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The penalised loss, of weights in units of their prior's standard deviation."""
        table = values.reshape(width + 1, targets)
        weights, strengths = table[:-1], table[-1]
        ahead = votes.differences(inputs @ (spread * weights) + strengths)
        total = cross_entropy(ahead, votes.outcome).sum() + np.square(weights).sum() / 2
        ties = cross_entropy(strengths, np.full(targets, 0.5)).sum()
        excess = expit(ahead) - votes.outcome
        slopes = np.zeros((len(votes), targets))
        slopes[places, votes.first] = excess
        slopes[places, votes.second] = -excess
        own = slopes.sum(axis=0) + expit(strengths) - 0.5
        gradient = np.vstack([spread * (inputs.T @ slopes) + weights, own])
        return float(total + ties), gradient.reshape(-1)

    first = (
        np.zeros((width + 1) * targets)
        if start is None
        else np.vstack([start.weights / spread, start.strengths]).reshape(-1)
    )
    options = {"ftol": tolerance, "gtol": _SLOPE, "maxiter": 1000}
    best = minimize(loss, first, jac=True, method="L-BFGS-B", options=options).x
    if not np.isfinite(best).all():
        raise FitError("the model of the votes doesn't converge; check the features")
    table = best.reshape(width + 1, targets)
    centred = table - table.mean(axis=1, keepdims=True)
    return PairScores(spread * centred[:-1], centred[-1])


def unvoted_notes(votes: Votes, targets: Sequence[str]) -> tuple[str, ...]:
    """Which targets are in no vote."""
    return tuple(
        f"{name} is in no vote; it counts as an average target"
        for name, count in zip(targets, votes.counts.tolist(), strict=True)
        if not count
    )
