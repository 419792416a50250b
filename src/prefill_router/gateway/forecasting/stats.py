"""What a forecaster tells of itself."""

from dataclasses import dataclass
from typing import Literal, final

ForecasterState = Literal["starting", "ready", "down", "closed"]
"""`starting`: its process loads the encoder; `down`: it failed, and is started again in a while."""


@final
@dataclass(frozen=True, kw_only=True)
class ForecasterStats:
    """Counts since the start, but for the first three.

    Attributes:
        state: Whether it gives forecasts now.
        waiting: Prompts that no batch has taken yet.
        under_way: Prompts of the batch that is being read.
        batches: Batches that were answered.
        encoded: Prompts in them.
        cache_hits: Requests that were answered from memory.
        shared: Requests that waited for a prompt which another had asked for already.
        restarts: How often the encoder's process was started again.
        busy_seconds: How long it worked on batches.
    """

    state: ForecasterState
    waiting: int
    under_way: int
    batches: int
    encoded: int
    cache_hits: int
    shared: int
    restarts: int
    busy_seconds: float

    @property
    def mean_batch(self) -> float:
        """Prompts in a batch; 0 before the first."""
        return self.encoded / self.batches if self.batches else 0.0
