"""Features that know how long a prompt is, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.features.base import Columns, Family, FamilyConfig, PromptStates
from prefill_router.features.registry import FamilyEntry
from prefill_router.progress import Progress


@dataclass(frozen=True)
class PromptLength(Family):
    kind: ClassVar[str] = "prompt_length"

    @property
    def width(self) -> int:
        return 1

    def read(self, reading: PromptStates) -> Columns:
        return np.array([[len(str(prompt))] for prompt in reading.prompts], dtype=np.float32)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {}

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> "PromptLength":
        return cls()


@dataclass(frozen=True, kw_only=True)
class PromptLengthConfig(FamilyConfig):
    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> PromptLength:
        return PromptLength()


ENTRY = FamilyEntry(PromptLengthConfig, PromptLength)
