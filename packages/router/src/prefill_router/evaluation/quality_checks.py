"""Quality checks: how a cascade scores an answer that it has received."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from hashlib import blake2b
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import binary
from prefill_router.errors import DataError
from prefill_router.options import Share, check_options
from prefill_router.short_repr import short_repr

PerCell = Float[NDArray[np.float64], "query target"]


_STEPS = 2**64


class QualityCheck(ABC):
    """Scores answers in [0, 1]; a higher score means more likely to be right."""

    @abstractmethod
    def scores(
        self, query_ids: tuple[str, ...], targets: tuple[str, ...], correct: PerCell
    ) -> PerCell:
        """The score of every target's answer to every query; NaN where it isn't known.

        Args:
            query_ids: The rows.
            targets: The columns.
            correct: Whether the answers were right; only a simulated check looks at it.

        Raises:
            DataError: Some answers of these queries and targets have no score.
        """

    @property
    @abstractmethod
    def description(self) -> str:
        """A description for reports."""


@short_repr
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedCheck(QualityCheck):
    """Scores that a checker gave to recorded answers.

    Attributes:
        query_ids: The rows.
        targets: The columns.
        table: The scores in [0, 1]; NaN where an answer wasn't scored.

    Raises:
        DataError: The shapes differ, or a score is outside [0, 1].
    """

    query_ids: tuple[str, ...]
    targets: tuple[str, ...]
    table: PerCell

    def __post_init__(self) -> None:
        shape = (len(self.query_ids), len(self.targets))
        if self.table.shape != shape:
            raise DataError(f"the scores are {self.table.shape}; ids and targets need {shape}")
        scores = self.table[~np.isnan(self.table)]
        if not ((scores >= 0) & (scores <= 1)).all():
            raise DataError("the scores of a quality check must be in [0, 1], or NaN where missing")

    def scores(
        self,
        query_ids: tuple[str, ...],
        targets: tuple[str, ...],
        correct: PerCell,  # noqa: ARG002
    ) -> PerCell:
        """The recorded scores of these answers.

        Raises:
            DataError: Some queries or targets have none.
        """
        rows = {name: i for i, name in enumerate(self.query_ids)}
        columns = {name: i for i, name in enumerate(self.targets)}
        lacking = [name for name in query_ids if name not in rows]
        lacking += [name for name in targets if name not in columns]
        if lacking:
            raise DataError(
                f"the quality check lacks {len(lacking)} of the queries and targets, the first is "
                f"{lacking[0]!r}; score them too, or leave them out"
            )
        cells = np.ix_([rows[name] for name in query_ids], [columns[name] for name in targets])
        scores: PerCell = self.table[cells]
        return scores

    @property
    def description(self) -> str:
        """A description for reports."""
        return "recorded scores"


@final
@dataclass(frozen=True, kw_only=True)
class SimulatedCheck(QualityCheck):
    """A simulated check that knows the labels and errs at given rates; it models no real check.

    Scores are above 0.5 for the share `sensitivity` of the right answers, and below for the share
    `specificity` of the wrong ones, uniform on either side. An answer's score depends on nothing
    but the seed, its label, the query's id and the target's name.

    Attributes:
        sensitivity: The share of right answers that pass at 0.5.
        specificity: The share of wrong answers that fail at 0.5.
        seed: Random seed of the errors.

    Raises:
        ConfigError: A rate is outside [0, 1].
    """

    sensitivity: Share
    specificity: Share
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self)

    def scores(
        self, query_ids: tuple[str, ...], targets: tuple[str, ...], correct: PerCell
    ) -> PerCell:
        """Scores simulated from the labels; NaN where there is no label."""
        label = binary(correct)
        first, second = (
            np.array([[self._draw(which, q, t) for t in targets] for q in query_ids])
            for which in ("passes", "score")
        )
        share = np.where(label == 1, self.sensitivity, 1 - self.specificity)
        scores: PerCell = second / 2 + np.where(first < share, 0.5, 0)
        return np.where(np.isnan(label), np.nan, scores)

    def _draw(self, which: str, query: str, target: str) -> float:
        text = "\0".join((str(self.seed), which, query, target))
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / _STEPS

    @property
    def description(self) -> str:
        """A description for reports that says it is simulated."""
        return (
            f"SIMULATED from the labels, sensitivity {self.sensitivity:g}, specificity "
            f"{self.specificity:g} at 0.5, seed {self.seed}"
        )
