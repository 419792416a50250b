"""The complexity of the text: readability, diversity, structure and information (section 3.2).

A family of features; `complexity_measures` computes the measures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import Prompt, RoutingDataset
from prefill_router.data.dataset import prompt_text
from prefill_router.errors import CorruptError, FitError
from prefill_router.features.base import Columns, ColumnScaler, Family, FamilyConfig, PromptStates
from prefill_router.features.complexity_measures import (
    Words,
    diversity,
    information,
    readability,
    structure,
)
from prefill_router.features.registry import FamilyEntry
from prefill_router.progress import Progress

COLUMNS = (
    *("flesch_kincaid", "coleman_liau", "automated_readability", "smog"),
    *("type_token_ratio", "hapax_ratio", "yule_k"),
    *("negations", "mathematics", "code", "bracket_depth", "number_density"),
    *("character_entropy", "zlib_ratio", "characters", "words"),
)
"""What each column measures."""
_TAIL = 0.005  # of the train rows at either end, beyond which a value counts as the value there

Bound = Float32[NDArray[np.float32], " column"]


@final
@dataclass(frozen=True, kw_only=True)
class ComplexityConfig(FamilyConfig):
    """The complexity of the text has no options: every measure is a column."""

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> "Complexity":
        """Measure the train texts, and bound and standardise by them; nothing is drawn.

        Raises:
            FitError: There is no query.
            MissingExtraError: Pyphen isn't installed.
        """
        del states, seed, progress
        if not len(train):
            raise FitError("there is no query to measure; give train rows")
        raw = measure([query.prompt for query in train.queries])
        low, high = np.quantile(raw, [_TAIL, 1 - _TAIL], axis=0, method="closest_observation")
        rare = low == high  # such as code in few texts
        low, high = np.where(rare, raw.min(axis=0), low), np.where(rare, raw.max(axis=0), high)
        bounded = np.clip(raw, low, high)
        return Complexity(
            low.astype(np.float32), high.astype(np.float32), ColumnScaler.fit(bounded)
        )


@final
@dataclass(frozen=True, eq=False)
class Complexity(Family):
    """Frozen measures of a text: made by `ComplexityConfig.fit` or `from_dict`.

    Attributes:
        low: The least value that counts, of each of `COLUMNS`; the train rows' 0.5 % quantile.
        high: The greatest, their 99.5 % quantile.
        standard: The scale of each column.
    """

    kind: ClassVar[str] = "complexity"

    low: Bound
    high: Bound
    standard: ColumnScaler

    @property
    def width(self) -> int:
        """How many columns it has."""
        return len(COLUMNS)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries; no states are read."""
        return self.standard.apply(np.clip(measure(reading.prompts), self.low, self.high))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the columns' names say what a saved scale belongs to."""
        return {"kind": self.kind, "columns": list(COLUMNS)}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The bounds and the scaler."""
        return {"low": self.low, "high": self.high, **self.standard.tensors()}

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> "Complexity":
        """The family of `to_dict` and `tensors`.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        if dict(config) != {"kind": cls.kind, "columns": list(COLUMNS)}:
            raise CorruptError(
                f"the complexity features are saved with {sorted(config)}; they must be kind and "
                f"columns, the latter {list(COLUMNS)}; copy or make the router again"
            )
        rest = dict(tensors)
        low, high = (_bound(rest, name) for name in ("low", "high"))
        if (low > high).any():
            raise CorruptError("a complexity feature's bounds are crossed; copy the router again")
        return cls(low, high, ColumnScaler.from_tensors(rest, width=len(COLUMNS)))


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


def _bound(tensors: dict[str, NDArray[Any]], name: str) -> Bound:
    """Take a bound out of the arrays."""
    array = tensors.pop(name, np.empty(0))
    if array.shape != (len(COLUMNS),) or array.dtype != np.float32 or not np.isfinite(array).all():
        raise CorruptError(
            f"the complexity features' array {name} must be finite float32 ({len(COLUMNS)},); "
            "copy or make the router again"
        )
    return array


__all__ = ["COLUMNS", "ENTRY", "Complexity", "ComplexityConfig", "measure"]

ENTRY = FamilyEntry(ComplexityConfig, Complexity)
