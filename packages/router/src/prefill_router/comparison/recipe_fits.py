"""Fits of several recipes on one split, each kept once it is fitted."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from prefill_router import __version__, files
from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split
from prefill_router.engines import Engine, LocalEngine
from prefill_router.errors import ConfigError, FitError, MissingExtraError, StoreError
from prefill_router.fitting import FitConfig, Recipe, learn
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import Part
from prefill_router.router import Router

Result = TypeVar("Result")
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
        requirement: What to install, as `pip install` takes it, if that is the reason; else empty.
    """

    name: str
    why: str
    requirement: str = ""


def failures(
    failed: Sequence[RecipeFailure], *, intro: str = "These could not be fitted:"
) -> list[Part]:
    """The failed recipes and the reasons, as parts of a page; empty without failures."""
    return [intro, {failure.name: failure.why for failure in failed}] if failed else []


def warnings(failed: Sequence[RecipeFailure], *, end: str = ":") -> list[str]:
    """The failed recipes and the reasons, as lines for the terminal."""
    return [f"{failure.name} could not be fitted{end} {failure.why}" for failure in failed]


def list_left_out(left_out: Sequence[RecipeFailure]) -> list[str]:
    """One line with the recipes whose packages aren't installed, and what to install; or none."""
    if not left_out:
        return []
    names = ", ".join(failure.name for failure in left_out)
    requirements = " ".join(dict.fromkeys(failure.requirement for failure in left_out))
    return [f"left out, not installed: {names} (pip install {requirements})"]


Fitted = RecipeFit | RecipeFailure
Inputs = tuple[RoutingDataset, tuple[Activations, ...]]


@final
@dataclass(frozen=True, eq=False)
class FitJob:
    """One fit of a study.

    Attributes:
        name: The recipe's name.
        config: The options of the fit, the recipe among them.
        split: The split.
        folder: Keeps the router once it is fitted, under its recipe's name; None keeps nothing.
    """

    name: str
    config: FitConfig
    split: Split
    folder: Path | None = None

    @property
    def place(self) -> Path | None:
        """The router's folder."""
        return None if self.folder is None else self.folder / _make_file_name(self.name)


def fit_all(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    split: Split,
    *,
    calibrated: Split | None = None,
    config: FitConfig | None = None,
    folder: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> tuple[list[RecipeFit], list[RecipeFailure]]:
    """Fit each recipe on the train part; the test part isn't used.

    Args:
        dataset: Scored answers.
        recipes: The recipes by name.
        states: Hidden states for their features, see `fitting.gather`.
        split: The split.
        calibrated: The split of the recipes with a calibration; `split` if not given.
        config: The options of the fits other than the recipe.
        folder: Keeps each router once it is fitted, and reuses kept routers of the same recipe,
            data, prices, states and split. Nothing is kept if not given.
        engine: Where the fits run; in this process if not given.
        progress: Reports the progress of the work.

    Returns:
        The routers in the order of the recipes, and the recipes that failed.
    """
    jobs = [
        FitJob(
            name,
            replace(config or FitConfig(), recipe=recipe),
            split if recipe.calibration == "none" else calibrated or split,
            folder,
        )
        for name, recipe in recipes.items()
    ]
    results = fit_jobs(
        dataset, states, jobs, finish=lambda _, result: result, engine=engine, progress=progress
    )
    fitted = [result for result in results if isinstance(result, RecipeFit)]
    return fitted, [result for result in results if isinstance(result, RecipeFailure)]


def fit_jobs(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    jobs: Sequence[FitJob],
    *,
    finish: Callable[[FitJob, Fitted], Result],
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Run the fits of a study.

    Args:
        dataset: Scored answers.
        states: Hidden states for the features.
        jobs: The fits. Routers that their folders keep aren't fitted again.
        finish: Called with each job and its router, or the reason why there is none, as soon as
            that is there, in any order. What it returns is kept.
        engine: Where the fits run; in this process if not given.
        progress: Reports the progress of the work.

    Returns:
        What `finish` returned, in the order of the jobs.
    """
    with (progress or SilentProgress()).task("routers", total=float(len(jobs))) as advance:

        def finish_fit(job: FitJob, fit: Fitted) -> Result:
            result = finish(job, fit)
            advance(note=job.name)
            return result

        shared = (dataset, tuple(states))
        return (engine or LocalEngine()).map(
            _fit_job,
            shared,
            jobs,
            load=partial(_load_fit, shared),
            keep=partial(_save_fit, shared),
            finish=finish_fit,
        )


def _fit_job(shared: Inputs, job: FitJob, progress: Progress) -> Fitted:
    del progress
    began = time.monotonic()
    try:
        router = learn(*shared, job.split, config=job.config)
    except MissingExtraError as error:
        return RecipeFailure(job.name, str(error), error.requirement)
    except FitError as error:
        return RecipeFailure(job.name, str(error))
    return RecipeFit(job.name, job.config.recipe, router, time.monotonic() - began)


def _load_fit(shared: Inputs, job: FitJob) -> RecipeFit | None:
    if job.place is None:
        return None
    record = _read_record(job.place)
    if record.get("made") != _digest_inputs(*shared, job.config.recipe):
        return None
    router = _load_router(job.place, shared[0], job.split, job.config)
    if router is None:
        return None
    return RecipeFit(job.name, job.config.recipe, router, record["seconds"])


def _save_fit(shared: Inputs, job: FitJob, fit: Fitted) -> None:
    if job.place is None or isinstance(fit, RecipeFailure):
        return
    # The file about an earlier router in this folder must not outlive that router.
    job.place.with_suffix(_TIMES).unlink(missing_ok=True)
    fit.router.save(job.place)
    digest = _digest_inputs(*shared, job.config.recipe)
    files.write_json(job.place.with_suffix(_TIMES), {"seconds": fit.seconds, "made": digest})


def _digest_inputs(dataset: RoutingDataset, states: Sequence[Activations], recipe: Recipe) -> str:
    """A digest of the inputs of a fit that a router's record doesn't contain."""
    soft = recipe.soft_labels
    try:
        labels = "" if soft is None else files.file_digest(soft.file)
    except OSError:  # the fit reports the error
        labels = "unreadable"
    inputs = {
        "package": __version__,
        "prices": digest_prices(dataset),
        "states": sorted({json.dumps(s.provenance.to_dict(), sort_keys=True) for s in states}),
        "soft_labels": labels,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def digest_prices(dataset: RoutingDataset) -> str:
    """A digest of all inputs of costs, independent of the order of queries and targets."""
    rows, columns = np.argsort(dataset.query_ids), np.argsort(dataset.pool.names)
    digest = hashlib.sha256(repr(sorted(repr(target) for target in dataset.pool)).encode())
    for table in (dataset.input_tokens, dataset.output_tokens, dataset.recorded_cost):
        digest.update(table[rows][:, columns].tobytes())
    return digest.hexdigest()


def _load_router(
    place: Path, dataset: RoutingDataset, split: Split, config: FitConfig
) -> Router | None:
    """The kept router, if its recipe, data and split are the same."""
    try:
        router = Router.load(place)
    except (ConfigError, StoreError):
        return None
    same = (
        router.record.options == config.to_dict()
        and router.record.trained_on.fingerprint == dataset.fingerprint
        and router.split == split
    )
    return router if same else None


def _read_record(place: Path) -> dict[str, Any]:
    """The content of the file beside a router; empty where it can't be read."""
    try:
        value = json.loads(place.with_suffix(_TIMES).read_text(encoding="utf-8"))
        return {"seconds": float(value["seconds"]), "made": str(value["made"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _make_file_name(name: str) -> str:
    """A folder name for a router; distinct names stay distinct."""
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in name) or "%"
