"""Options of a fit."""

from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.data.dataset import MOST_TOKENS
from prefill_router.errors import ConfigError
from prefill_router.fitting.recipe import Recipe


@final
@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Options of a fit.

    Attributes:
        recipe: How the router is made; the paper's if not given.
        assumed_output_tokens: Stands in for targets of which no output count is known.
        resamples: Bootstrap resamples for the card's intervals.
        seed: Of the split, where none is given, and of everything that is drawn.
    """

    recipe: Recipe = field(default_factory=Recipe)
    assumed_output_tokens: float | None = None
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 0 or self.seed < 0:
            raise ConfigError(
                f"{self.resamples} resamples and the seed {self.seed}; neither may be negative"
            )
        assumed = self.assumed_output_tokens
        if assumed is not None and not 0 <= assumed <= MOST_TOKENS:
            raise ConfigError(
                f"the assumed output tokens are {assumed}; they must be a number from 0 to "
                f"{MOST_TOKENS:,.0f}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record."""
        return {**vars(self), "recipe": self.recipe.to_dict()}
