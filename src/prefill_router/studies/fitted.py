"""Routers of several recipes on one split, each kept as soon as it is fitted."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from prefill_router import files
from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split
from prefill_router.errors import ConfigError, FitError, MissingExtraError, StoreError
from prefill_router.fitting import FitConfig, Recipe, learn
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import Router

_TIMES = ".times.json"
"""What is written beside a router's folder: a router itself says nothing that changes by chance."""


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A router of a recipe.

    Attributes:
        name: What the recipe is called.
        recipe: It.
        router: It, fitted.
        seconds: What the fit took, features included and states not; NaN where unknown.
    """

    name: str
    recipe: Recipe
    router: Router
    seconds: float


@final
@dataclass(frozen=True)
class Failed:
    """A recipe that can't be fitted on these data or this machine.

    Attributes:
        name: What the recipe is called.
        why: The reason.
    """

    name: str
    why: str


def fit_all(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    drawn: Split,
    *,
    config: FitConfig | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[list[Fitted], list[Failed]]:
    """Fit each recipe on the train part; the test part isn't looked at.

    Args:
        dataset: Scored answers.
        recipes: By name.
        states: What their features read, see `fitting.gather`.
        drawn: The split.
        config: The options beside the recipe.
        folder: Keeps each router as soon as it is fitted, and gives back those that it holds of the
            same recipe, data and split; nothing is kept if not given.
        progress: Shows how far it is.

    Returns:
        The routers in the order of the recipes, and the recipes that failed.
    """
    shown, fitted, failed = progress or SilentProgress(), list[Fitted](), list[Failed]()
    with shown.task("routers", total=float(len(recipes))) as advance:
        for name, recipe in recipes.items():
            wanted = replace(config or FitConfig(), recipe=recipe)
            place = None if folder is None else folder / _file_name(name)
            try:
                fitted.append(_one(dataset, states, drawn, name, wanted, place))
            except (MissingExtraError, FitError) as error:
                failed.append(Failed(name, str(error)))
            advance(note=name)
    return fitted, failed


def _one(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    drawn: Split,
    name: str,
    config: FitConfig,
    place: Path | None,
) -> Fitted:
    held = None if place is None else _held(place, dataset, drawn, config)
    if place is not None and held is not None:
        return Fitted(name, config.recipe, held, _seconds(place))
    began = time.monotonic()
    router = learn(dataset, states, drawn, config=config)
    seconds = time.monotonic() - began
    if place is not None:
        router.save(place)
        files.write_json(place.with_suffix(_TIMES), {"seconds": seconds})
    return Fitted(name, config.recipe, router, seconds)


def _held(place: Path, dataset: RoutingDataset, drawn: Split, config: FitConfig) -> Router | None:
    """The router that was kept, if it is of the same recipe, data and split."""
    try:
        router = Router.load(place)
    except (ConfigError, StoreError):
        return None
    same = (
        router.record.options == config.to_dict()
        and router.record.trained_on.fingerprint == dataset.fingerprint
        and router.split == drawn
    )
    return router if same else None


def _seconds(place: Path) -> float:
    try:
        value = json.loads(place.with_suffix(_TIMES).read_text(encoding="utf-8"))
        return float(value["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return float("nan")


def _file_name(name: str) -> str:
    """A folder's name for a router's; distinct names stay distinct."""
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in name) or "%"
