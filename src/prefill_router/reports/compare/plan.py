"""What is compared: routers by name, and the split that all of them share."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, final

from prefill_router.data import WITH_CALIBRATION, RoutingDataset, Split, split
from prefill_router.data.splits import FRACTIONS
from prefill_router.errors import ConfigError
from prefill_router.fitting import Recipe, read_recipes

CONSTANT = "(constant)"
"""What every router must beat: each target's share of right answers on the train part."""
ALL = "all"
"""The name of the list that comes with the package: every predictor that needs no download."""


@final
@dataclass(frozen=True)
class Plan:
    """Routers on one split.

    Attributes:
        recipes: By name; the first is the reference, if no other is named.
        reference: The router that the others are compared with.
        drawn: The split that all share.
        resamples: Bootstrap resamples of the test queries.
        seed: Of everything that is drawn.
        calibrated: The split of routers with a calibration, with the same test part; `drawn` if not
            given.
    """

    recipes: Mapping[str, Recipe]
    reference: str
    drawn: Split
    resamples: int = 1000
    seed: int = 0
    calibrated: Split | None = None

    def __post_init__(self) -> None:
        if self.calibrated is not None and self.calibrated["test"] != self.drawn["test"]:
            raise ConfigError(
                "the split of calibrated routers has another test part; draw both with one seed"
            )
        if CONSTANT in self.recipes:
            raise ConfigError(f"no router may be called {CONSTANT}: that is what all must beat")
        if self.resamples < 0 or self.seed < 0:
            raise ConfigError(
                f"{self.resamples} resamples and the seed {self.seed}; neither may be negative; "
                "1000 resamples are usual"
            )
        if self.reference not in self.recipes:
            raise ConfigError(
                f"the reference {self.reference!r} is no router of the list; it has "
                f"{list(self.recipes)}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what makes this comparison and no other."""
        return {
            "recipes": {name: recipe.to_dict() for name, recipe in self.recipes.items()},
            "reference": self.reference,
            "split": self.drawn.to_dict(),
            "resamples": self.resamples,
            "seed": self.seed,
            **({} if self.calibrated is None else {"calibrated": self.calibrated.to_dict()}),
        }


def recipes_of(config: str) -> dict[str, Recipe]:
    """The routers of a YAML file, or of the list that comes with the package, `all`.

    Raises:
        FormatError: The file is missing, malformed, or says something unknown.
    """
    if config == ALL and not Path(config).exists():
        with as_file(files("prefill_router.reports.compare") / "all.yaml") as path:
            return read_recipes(path)
    return read_recipes(Path(config))


def draw_for(recipes: Mapping[str, Recipe], dataset: RoutingDataset, *, seed: int) -> Split:
    """A split for all: with a calibration part where one of them is calibrated."""
    calibrated = any(recipe.calibration != "none" for recipe in recipes.values())
    return split(dataset, seed=seed, fractions=WITH_CALIBRATION if calibrated else FRACTIONS)
