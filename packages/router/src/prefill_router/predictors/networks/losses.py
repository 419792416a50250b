"""The losses of networks, and their derivatives by the networks' outputs."""

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.predictors.base import Examples
from prefill_router.predictors.training import query_weights

Cells = Float[NDArray[np.floating], "network row target"]
PerNetwork = Float[NDArray[np.floating], " network"]
PerRow = Float[NDArray[np.floating], " row"]


@final
@dataclass(frozen=True, eq=False)
class NetworkLabels:
    """The labels of rows, with the targets assigned to networks.

    Attributes:
        correct: The labels of the targets that can be learned; 0 where missing.
        weights: The weight of each label; 0 where missing.
        difficulty: 1 minus the mean of all labels that were measured on the query.
        difficulty_weights: The weight of each query's difficulty.
    """

    correct: Cells
    weights: Cells
    difficulty: PerRow
    difficulty_weights: PerRow

    @classmethod
    def of(
        cls, used: Examples, *, networks: int, disagreement_weight: float, dtype: type = np.float32
    ) -> "NetworkLabels":
        """The labels of usable examples."""
        labels, is_known = used.correct[:, used.learnable], used.present[:, used.learnable]
        each = query_weights(used.correct, disagreement_weight=disagreement_weight)
        right = np.nansum(used.correct, axis=1) / used.present.sum(axis=1)

        def split_targets(values: NDArray[np.floating]) -> Cells:
            split = values.reshape(len(values), networks, -1)
            return np.ascontiguousarray(np.moveaxis(split, 1, 0), dtype)

        return cls(
            split_targets(np.where(is_known, labels, 0)),
            split_targets(each[:, None] * is_known),
            (1 - right).astype(dtype),
            each.astype(dtype),
        )

    def __getitem__(self, rows: Int[NDArray[np.int64], " row"]) -> "NetworkLabels":
        return NetworkLabels(
            self.correct.take(rows, axis=1),
            self.weights.take(rows, axis=1),
            self.difficulty[rows],
            self.difficulty_weights[rows],
        )


@final
@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of networks for some rows.

    Attributes:
        correct: Logits of a right answer; with one network per target, each has one column.
        difficulty: Logits of the difficulty, where there is a head for it.
        difficulty_weight: The weight of its loss relative to that of the correctness.
        preference: Scores for learning from pairs: the difference between two targets' scores is
            the logit of one being right given that exactly one of them is.
        preference_weight: The weight of the loss of pairs, where that of the correctness has 1.
    """

    correct: Cells
    difficulty: Float[NDArray[np.floating], "network row"] | None = None
    difficulty_weight: float = 0.0
    preference: Cells | None = None
    preference_weight: float = 1.0


@final
@dataclass(frozen=True, eq=False)
class Slopes:
    """The derivatives of the loss by each of the outputs."""

    correct: Cells
    difficulty: Float[NDArray[np.floating], "network row"] | None
    preference: Cells | None


def compute_losses(outputs: Outputs, labels: NetworkLabels) -> tuple[PerNetwork, Slopes]:
    """The loss of each network, and the slopes of what is trained on.

    The loss is the cross-entropy in nats per label, plus that per pair if pairs are learned. What
    is trained on also has the difficulty's cross-entropy, in nats per query.
    """
    losses, correct = cross_entropy(outputs.correct, labels.correct, labels.weights)
    difficulty = preference = None
    if outputs.preference is not None:
        of_pairs, preference = pair_losses(outputs.preference, labels.correct, labels.weights)
        losses = losses + outputs.preference_weight * of_pairs
        preference *= outputs.preference_weight
    if outputs.difficulty is not None:
        hard, weights = (
            np.broadcast_to(values[:, None], (*outputs.difficulty.shape, 1))
            for values in (labels.difficulty, labels.difficulty_weights)
        )
        difficulty = cross_entropy(outputs.difficulty[..., None], hard, weights)[1][..., 0]
        difficulty *= outputs.difficulty_weight
    return losses, Slopes(correct, difficulty, preference)


def cross_entropy(logits: Cells, labels: Cells, weights: Cells) -> tuple[PerNetwork, Cells]:
    """The weighted mean over each network's cells, 0 without any, and its slopes."""
    above, chance = _softplus_and_sigmoid(logits)
    share = weights / _positive_totals(weights.sum(axis=(1, 2)))
    losses = ((above - logits * labels) * share).sum(axis=(1, 2))
    chance -= labels
    chance *= share
    return losses, chance


def _softplus_and_sigmoid(logits: Cells) -> tuple[Cells, Cells]:
    small = np.exp(-np.abs(logits))
    chance = np.where(logits < 0, small, 1)
    chance /= 1 + small
    above = np.maximum(logits, 0)
    above += np.log1p(small)
    return above, chance


def _positive_totals(total: PerNetwork) -> Float[NDArray[np.floating], "network 1 1"]:
    """The totals as divisors of cells, 1 where they are 0."""
    return np.where(total > 0, total, total.dtype.type(1))[:, None, None]


def pair_losses(scores: Cells, labels: Cells, weights: Cells) -> tuple[PerNetwork, Cells]:
    """The cross-entropy in nats per pair of a right and a wrong answer, and its slopes.

    Both labels of a pair must be measured. Soft labels are probabilities: with labels of 0.9 and
    0.2 the first is the winner with weight 0.9 x 0.8, the second with weight 0.2 x 0.1.
    """
    first, second = _list_pairs(scores.shape[-1], scores.dtype)
    between = first - second
    wins, loses = labels * weights, (1 - labels) * (weights > 0)
    ahead = (wins @ first) * (loses @ second)  # the weight of the first's win
    either = ahead + (wins @ second) * (loses @ first)
    gap = scores @ between
    above, chance = _softplus_and_sigmoid(gap)
    total = _positive_totals(either.sum(axis=(1, 2)))
    # softplus(-gap) is softplus(gap) - gap, so both orders of a pair need one softplus.
    losses = (either * above - ahead * gap).sum(axis=(1, 2)) / total[:, 0, 0]
    chance *= either
    chance -= ahead
    chance /= total
    return losses, chance @ between.T


@lru_cache(maxsize=8)
def _list_pairs(
    targets: int, dtype: np.dtype[np.floating]
) -> tuple[
    Float[NDArray[np.floating], "target pair"],
    Float[NDArray[np.floating], "target pair"],
]:
    """The first and the second target of each pair, as columns with a single 1."""
    first, second = np.triu_indices(targets, 1)
    unit = np.eye(targets, dtype=dtype)
    return unit[:, first], unit[:, second]
