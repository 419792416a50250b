"""Fits of several recipes on one split, each kept once it is fitted."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from prefill_router import __version__, files
from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split
from prefill_router.errors import ConfigError, FitError, MissingExtraError, StoreError
from prefill_router.fitting import FitConfig, Recipe, learn
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import Part
from prefill_router.router import Router

_TIMES = ".times.json"
"""Suffix of the file beside a router's folder: the duration of the fit, which isn't reproducible,
and a digest of its inputs."""


@final
@dataclass(frozen=True, eq=False)
class RecipeFit:
    """A router fitted from a recipe.

    Attributes:
        name: The recipe's name.
        recipe: The recipe.
        router: The fitted router.
        seconds: Duration of the fit, including features but not encoding.
    """

    name: str
    recipe: Recipe
    router: Router
    seconds: float


@final
@dataclass(frozen=True)
class RecipeFailure:
    """A recipe that can't be fitted on these data or this machine.

    Attributes:
        name: The recipe's name.
        why: The reason.
    """

    name: str
    why: str


def failures(
    failed: Sequence[RecipeFailure], *, said: str = "These could not be fitted:"
) -> list[Part]:
    """The failed recipes and the reasons, as parts of a page; empty without failures."""
    return [said, {one.name: one.why for one in failed}] if failed else []


def warnings(failed: Sequence[RecipeFailure], *, end: str = ":") -> list[str]:
    """The failed recipes and the reasons, as lines for the terminal."""
    return [f"{one.name} could not be fitted{end} {one.why}" for one in failed]


def fit_all(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    drawn: Split,
    *,
    calibrated: Split | None = None,
    config: FitConfig | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[list[RecipeFit], list[RecipeFailure]]:
    """Fit each recipe on the train part; the test part isn't used.

    Args:
        dataset: Scored answers.
        recipes: The recipes by name.
        states: Hidden states for their features, see `fitting.gather`.
        drawn: The split.
        calibrated: The split of the recipes with a calibration; `drawn` if not given.
        config: The options of the fits other than the recipe.
        folder: Keeps each router once it is fitted, and reuses kept routers of the same recipe,
            data, prices, states and split; nothing is kept if not given.
        progress: Reports the progress of the work.

    Returns:
        The routers in the order of the recipes, and the recipes that failed.
    """
    shown, fitted, failed = progress or SilentProgress(), list[RecipeFit](), list[RecipeFailure]()
    with shown.task("routers", total=float(len(recipes))) as advance:
        for name, recipe in recipes.items():
            wanted = replace(config or FitConfig(), recipe=recipe)
            place = None if folder is None else folder / _file_name(name)
            try:
                used = drawn if recipe.calibration == "none" else calibrated or drawn
                fitted.append(_one(dataset, states, used, name, wanted, place))
            except (MissingExtraError, FitError) as error:
                failed.append(RecipeFailure(name, str(error)))
            advance(note=name)
    return fitted, failed


def _one(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    drawn: Split,
    name: str,
    config: FitConfig,
    place: Path | None,
) -> RecipeFit:
    made = _made_of(dataset, states, config.recipe)
    told = {} if place is None else _told(place)
    held = None
    if place is not None and told.get("made") == made:
        held = _held(place, dataset, drawn, config)
    if held is not None:
        return RecipeFit(name, config.recipe, held, told["seconds"])
    began = time.monotonic()
    router = learn(dataset, states, drawn, config=config)
    seconds = time.monotonic() - began
    if place is not None:
        # The file about an earlier router in this folder must not outlive that router.
        place.with_suffix(_TIMES).unlink(missing_ok=True)
        router.save(place)
        files.write_json(place.with_suffix(_TIMES), {"seconds": seconds, "made": made})
    return RecipeFit(name, config.recipe, router, seconds)


def _made_of(dataset: RoutingDataset, states: Sequence[Activations], recipe: Recipe) -> str:
    """A digest of the inputs of a fit that a router's record doesn't contain."""
    soft = recipe.soft_labels
    try:
        judged = "" if soft is None else files.file_digest(soft.file)
    except OSError:  # the fit reports the error
        judged = "unreadable"
    told = {
        "package": __version__,
        "prices": priced(dataset),
        "states": sorted({json.dumps(s.provenance.to_dict(), sort_keys=True) for s in states}),
        "soft_labels": judged,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def priced(dataset: RoutingDataset) -> str:
    """A digest of all inputs of costs, independent of the order of queries and targets."""
    rows, columns = np.argsort(dataset.query_ids), np.argsort(dataset.pool.names)
    digest = hashlib.sha256(repr(sorted(repr(target) for target in dataset.pool)).encode())
    for table in (dataset.input_tokens, dataset.output_tokens, dataset.recorded_cost):
        digest.update(table[rows][:, columns].tobytes())
    return digest.hexdigest()


def _held(place: Path, dataset: RoutingDataset, drawn: Split, config: FitConfig) -> Router | None:
    """The kept router, if its recipe, data and split are the same."""
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


def _told(place: Path) -> dict[str, Any]:
    """The content of the file beside a router; empty where it can't be read."""
    try:
        value = json.loads(place.with_suffix(_TIMES).read_text(encoding="utf-8"))
        return {"seconds": float(value["seconds"]), "made": str(value["made"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _file_name(name: str) -> str:
    """A folder name for a router; distinct names stay distinct."""
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in name) or "%"
