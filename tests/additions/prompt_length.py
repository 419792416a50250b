"""Features that know how long a prompt is, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.features.base import Columns, Family, FamilyConfig, FamilyEntry, PromptStates
from prefill_router.progress import Progress


@dataclass(frozen=True)
class PromptLength(Family):
    kind: ClassVar[str] = "prompt_length"

    @property
    def width(self) -> int:
        return 1

    def read(self, reading: PromptStates) -> Columns:
        return np.array([[len(str(prompt))] for prompt in reading.prompts], dtype=np.float32)


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
