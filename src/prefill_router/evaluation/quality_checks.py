"""Quality checks: what a cascade learns of an answer once it has it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from hashlib import blake2b
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import binary
from prefill_router.errors import ConfigError, DataError
from prefill_router.short_repr import short_repr

PerCell = Float[NDArray[np.float64], "query target"]


_STEPS = 2**64


class QualityCheck(ABC):
    """Scores answers in [0, 1]; the higher, the more likely to be right."""

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
        """What it is, in words."""


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
        known = self.table[~np.isnan(self.table)]
        if not ((known >= 0) & (known <= 1)).all():
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
        """`recorded`."""
        return "recorded scores"


@final
@dataclass(frozen=True, kw_only=True)
class SimulatedCheck(QualityCheck):
    """A made-up check that knows the labels and errs at stated rates; no real check is meant.

    Scores are above 0.5 for the share `sensitivity` of the right answers, and below for the share
    `specificity` of the wrong ones, evenly spread on either side. An answer's score depends on the
    seed, its query's id and its target's name alone.

    Attributes:
        sensitivity: The share of right answers that pass at 0.5.
        specificity: The share of wrong answers that don't.
        seed: Another seed, other errors.

    Raises:
        ConfigError: A rate is outside [0, 1].
    """

    sensitivity: float
    specificity: float
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("sensitivity", "specificity"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be in [0, 1]")

    def scores(
        self, query_ids: tuple[str, ...], targets: tuple[str, ...], correct: PerCell
    ) -> PerCell:
        """Scores made up from the labels; NaN where there is none."""
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
        """What was simulated."""
        return (
            f"SIMULATED from the labels, sensitivity {self.sensitivity:g}, specificity "
            f"{self.specificity:g} at 0.5, seed {self.seed}"
        )
