"""The complexity of the text: readability, diversity, structure and information (section 3.2).

A family of features; `complexity_measures` computes the measures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import Prompt, RoutingDataset, prompt_text
from prefill_router.errors import ConfigError, FitError
from prefill_router.features.base import (
    Columns,
    ColumnScaler,
    Family,
    FamilyConfig,
    FamilyEntry,
    PromptStates,
)
from prefill_router.features.complexity_measures import (
    Words,
    diversity,
    information,
    readability,
    structure,
)
from prefill_router.progress import Progress

COLUMNS = (
    *("flesch_kincaid", "coleman_liau", "automated_readability", "smog"),
    *("type_token_ratio", "hapax_ratio", "yule_k"),
    *("negations", "mathematics", "code", "bracket_depth", "number_density"),
    *("character_entropy", "zlib_ratio", "characters", "words"),
)
"""The names of the measures, one per column."""
_TAIL = 0.005  # the quantiles of the train rows to which values are clipped

Bound = Float32[NDArray[np.float32], " column"]


@final
@dataclass(frozen=True, kw_only=True)
class ComplexityConfig(FamilyConfig):
    """The options of text complexity: none, every measure is a column."""

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> "Complexity":
        """Measure the train texts, which give the clipping bounds and the scale; not random.

        Raises:
            FitError: There is no query.
            MissingExtraError: Pyphen isn't installed.
        """
        del states, seed, progress
        if not len(train):
            raise FitError("there is no query to measure; give train rows")
        raw = measure([query.prompt for query in train.queries])
        low, high = np.quantile(raw, [_TAIL, 1 - _TAIL], axis=0, method="closest_observation")
        rare = low == high  # for example code, where few texts have any
        low, high = np.where(rare, raw.min(axis=0), low), np.where(rare, raw.max(axis=0), high)
        bounded = np.clip(raw, low, high)
        return Complexity(
            low.astype(np.float32), high.astype(np.float32), ColumnScaler.fit(bounded), COLUMNS
        )


@final
@dataclass(frozen=True, eq=False)
class Complexity(Family):
    """Fitted measures of a text. Frozen; made by `ComplexityConfig.fit` or `from_dict`.

    Attributes:
        low: The lower clipping bound of each of `COLUMNS`: the train rows' 0.5 % quantile.
        high: The upper clipping bound: their 99.5 % quantile.
        standard: The scaler of the columns.
        columns: The names of the columns.
    """

    kind: ClassVar[str] = "complexity"

    axes: ClassVar[Mapping[str, str]] = {"column": "columns"}
    low: Bound
    high: Bound
    standard: ColumnScaler
    columns: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(COLUMNS)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries, from their text alone."""
        return self.standard.apply(np.clip(measure(reading.prompts), self.low, self.high))

    def verify(self) -> None:
        """Check the columns' names, to which the saved scale belongs, and the bounds."""
        if self.columns != COLUMNS:
            raise ConfigError(f"its columns are {list(self.columns)}; they must be {list(COLUMNS)}")
        if (self.low > self.high).any():
            raise ConfigError("a lower bound is above its upper bound")


def measure(prompts: Sequence[Prompt]) -> Float64[NDArray[np.float64], "query column"]:
    """The measures of each text, finite, in the order of `COLUMNS`; a chat's turns are one text.

    Raises:
        MissingExtraError: Pyphen isn't installed.
    """
    rows = [_of_text(prompt_text(prompt)) for prompt in prompts]
    return np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS))


def _of_text(text: str) -> tuple[float, ...]:
    words = Words.of(text)
    return (*readability(words), *diversity(words), *structure(words), *information(words))


__all__ = ["COLUMNS", "ENTRY", "Complexity", "ComplexityConfig", "measure"]

ENTRY = FamilyEntry(ComplexityConfig, Complexity)
