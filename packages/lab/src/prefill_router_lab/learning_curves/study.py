"""Fits on fewer labels, judged on the same test queries.

The predictions of each fit are kept once they are made, so that interrupted work can resume.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from prefill_router import __version__, files
from prefill_router.activations import Activations
from prefill_router.comparison import RecipeFailure
from prefill_router.cost import CostScale
from prefill_router.data import RoutingDataset, Split
from prefill_router.engines import Engine, LocalEngine
from prefill_router.errors import ConfigError, CorruptError, DataError, FitError, MissingExtraError
from prefill_router.evaluation import Estimate, Trial, Weights, chunks, ones
from prefill_router.fitting import FitConfig, Recipe, learn
from prefill_router.policy import Predictions
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import read_tensors
from prefill_router_lab.learning_curves.advice import LabelAxis, spread_of, trend_of, verdict_of
from prefill_router_lab.learning_curves.curves import (
    NUMBERS,
    FitJudge,
    LearningCurve,
    Number,
    SizePoint,
)
from prefill_router_lab.learning_curves.options import FULL, LearningOptions, Size
from prefill_router_lab.learning_curves.result import LearningStudy
from prefill_router_lab.learning_curves.subsamples import labels_of, sizes_for, thinned


def study_learning(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    drawn: Split,
    options: LearningOptions | None = None,
    *,
    folder: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> LearningStudy:
    """Fit on subsets of the labels and judge the fits on the test part.

    Args:
        dataset: Scored answers.
        recipes: The recipes by name.
        states: Hidden states for their features, see `fitting.gather`.
        drawn: The split; only its train and calibration parts are subsampled and used for fitting.
        options: The options.
        folder: Keeps the predictions of each fit, so that interrupted work can resume.
        engine: Where the fits run; in this process if not given.
        progress: Reports the progress of the work.

    Raises:
        FitError: A recipe can't be fitted with all labels.
        ConfigError: There is no recipe, or one's policy is learned.
    """
    if not recipes:
        raise ConfigError("there is no router to study; name at least one")
    for recipe in recipes.values():
        _ = recipe.fixed_policy
    options, shown = options or LearningOptions(), progress or SilentProgress()
    sizes = tuple(dict.fromkeys((*(options.sizes or sizes_for(dataset, drawn)), FULL)))
    work = _LearningWork(dataset, tuple(states), drawn, recipes, options, folder)
    train = dataset.select(drawn["train"])
    asked = [(name, size, d) for name in recipes for size in sizes for d in range(options.draws)]
    with shown.task("fits", total=float(len(asked))) as advance:

        def finish(one: _Asked, fit: _Fit) -> _Fit:
            advance(note=f"{one[0]} {fit.words}")
            return fit

        fits = (engine or LocalEngine()).map(
            _fit, work, asked, held=work.held, keep=work.keep, finish=finish
        )
    each = len(sizes) * options.draws
    made = {name: fits[i * each : (i + 1) * each] for i, name in enumerate(recipes)}
    curves = {name: _curve(name, work, sizes, fits, shown) for name, fits in made.items()}
    costs = train.observed_cost[~np.isnan(train.correct)]
    return LearningStudy(
        curves=curves,
        queries=len(train),
        labels=labels_of(train),
        targets=dataset.pool.names,
        tested=len(drawn["test"]),
        label_cost=float(np.nanmean(costs)) if np.isfinite(costs).any() else float("nan"),
        draws=options.draws,
        resamples=options.resamples,
        seed=options.seed,
    )


@final
@dataclass(frozen=True, eq=False)
class _Fit:
    size: Size
    draw: int
    queries: int
    labels: int
    predictions: Predictions | None
    why: str
    recipe: Recipe

    @property
    def words(self) -> str:
        return f"{self.queries:,} queries, {self.size.words}, draw {self.draw + 1}"


_Asked = tuple[str, Size, int]
"""The name of a recipe, a size, and the number of the draw."""


@final
@dataclass(frozen=True, eq=False)
class _LearningWork:
    dataset: RoutingDataset
    states: tuple[Activations, ...]
    drawn: Split
    recipes: Mapping[str, Recipe]
    options: LearningOptions
    folder: Path | None

    @property
    def test(self) -> RoutingDataset:
        return self.dataset.select(self.drawn["test"])

    def thinned(self, asked: _Asked) -> tuple[RoutingDataset, Split, FitConfig, _Fit]:
        """The inputs of a fit, and the fit without its predictions."""
        name, size, draw = asked
        seed, recipe = self.options.seed + draw, self.recipes[name]
        less, kept = thinned(self.dataset, self.drawn, size, seed=seed)
        train, config = less.select(kept["train"]), FitConfig(recipe=recipe, seed=seed)
        return less, kept, config, _Fit(size, draw, len(train), labels_of(train), None, "", recipe)

    def path(self, kept: Split, config: FitConfig, size: Size) -> Path | None:
        if self.folder is None:
            return None
        key = key_of(self.dataset, self.states, kept, config, size)
        return self.folder / f"{key}.safetensors"

    def held(self, asked: _Asked) -> _Fit | None:
        _, kept, config, fit = self.thinned(asked)
        path, test = self.path(kept, config, fit.size), self.test
        before = None if path is None else held(path, test.query_ids, test.pool.names)
        return None if before is None else replace(fit, predictions=before)

    def keep(self, asked: _Asked, fit: _Fit) -> None:
        _, kept, config, _ = self.thinned(asked)
        path = self.path(kept, config, fit.size)
        if path is not None and fit.predictions is not None:
            keep(path, fit.predictions)


def _fit(work: _LearningWork, asked: _Asked, progress: Progress) -> _Fit:
    del progress
    less, kept, config, fit = work.thinned(asked)
    try:
        router = learn(less, work.states, kept, config=config)
        return replace(fit, predictions=router.predict(work.test, stores=work.states))
    except MissingExtraError:
        raise
    except (FitError, ConfigError, DataError) as error:
        if fit.size == FULL:  # a smaller size may fail for lack of data
            raise
        return replace(fit, why=str(error))


def _curve(
    name: str, work: _LearningWork, sizes: Sequence[Size], fits: Sequence[_Fit], progress: Progress
) -> LearningCurve:
    test = work.test
    judges = [
        None
        if f.predictions is None
        else FitJudge(Trial.join(f.predictions, test, policy=f.recipe.fixed_policy))
        for f in fits
    ]
    shape = (len(sizes), work.options.draws)
    point = _judged(judges, ones(len(test)), shape)
    parts: list[dict[Number, NDArray[np.float64]]] = []
    drawn = chunks(
        len(test), count=work.options.resamples, seed=work.options.seed, width=len(test) * 4
    )
    with progress.task(f"judging {name}", total=float(work.options.resamples)) as advance:
        for weights in drawn:
            parts.append(_judged(judges, weights, shape))
            advance(float(len(weights)))
    tables = {n: np.concatenate([part[n] for part in parts]) for n in NUMBERS}
    tables = {n: _redrawn(table, seed=work.options.seed) for n, table in tables.items()}
    means = {n: _mean(values)[0] for n, values in point.items()}
    groups = [
        fits[i * work.options.draws : (i + 1) * work.options.draws] for i in range(len(sizes))
    ]
    points = tuple(
        SizePoint(
            size=size,
            queries=group[0].queries,
            labels=float(np.mean([fit.labels for fit in group])),
            numbers={
                n: Estimate.of(float(means[n][i]), tables[n][:, i], reason=group[0].why)
                for n in NUMBERS
            },
            draws={n: tuple(point[n][0, i].tolist()) for n in NUMBERS},
        )
        for i, (size, group) in enumerate(zip(sizes, groups, strict=True))
    )
    failed = tuple(RecipeFailure(fit.words, fit.why) for fit in fits if fit.why)
    return _advised(name, points, means, tables, failed)


def _advised(
    name: str,
    points: tuple[SizePoint, ...],
    means: Mapping[Number, NDArray[np.float64]],
    tables: Mapping[Number, NDArray[np.float64]],
    failed: tuple[RecipeFailure, ...],
) -> LearningCurve:
    def axis(number: Number, *, deep: bool) -> LabelAxis:
        on = [i for i, p in enumerate(points) if (p.size.measured is None) == deep]
        on.sort(key=lambda i: points[i].labels)
        labels = np.array([points[i].labels for i in on], dtype=np.float64)
        return LabelAxis(labels, means[number][on], tables[number][:, on])

    trends = {n: trend_of(n, axis(n, deep=True)) for n in NUMBERS}
    spread = {n: spread_of(n, axis(n, deep=True), axis(n, deep=False)) for n in NUMBERS}
    full = next(p for p in points if p.size == FULL)
    verdict, because = verdict_of(trends, full)
    return LearningCurve(
        name=name,
        points=points,
        trends=trends,
        spread=spread,
        verdict=verdict,
        because=because,
        failed=failed,
    )


def _judged(
    judges: Sequence[FitJudge | None], weights: Weights, shape: tuple[int, int]
) -> dict[Number, NDArray[np.float64]]:
    """Each metric: [resample, size, draw]."""
    nothing = np.full(len(weights), np.nan)
    rows = [None if judge is None else judge.numbers(weights) for judge in judges]
    return {
        n: np.stack([nothing if row is None else row[n] for row in rows], axis=1).reshape(
            len(weights), *shape
        )
        for n in NUMBERS
    }


def _redrawn(table: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
    """Bootstrap means over the draws, with the same indices at every size: [resample, size]."""
    resamples, _, draws = table.shape
    picked = np.random.default_rng([seed, 3]).integers(0, draws, (resamples, 1, draws))
    return _mean(np.take_along_axis(table, np.broadcast_to(picked, table.shape), axis=2))


def _mean(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the known values over the last axis; NaN where none is known."""
    known = np.isfinite(table)
    total = np.where(known, table, 0).sum(axis=-1)
    count = known.sum(axis=-1)
    result: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return result


_TABLES = ("correctness", "estimated_cost")


def key_of(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    drawn: Split,
    config: FitConfig,
    size: Size,
) -> str:
    """A file name that identifies these predictions: a digest of everything they depend on."""
    told = {
        "package": __version__,
        "dataset": dataset.fingerprint,
        "costs": hashlib.sha256(np.nan_to_num(dataset.observed_cost).tobytes()).hexdigest(),
        "pool": [repr(target) for target in dataset.pool],
        "states": sorted(json.dumps(s.provenance.to_dict(), sort_keys=True) for s in states),
        "split": drawn.to_dict(),
        "config": config.to_dict(),
        "size": [size.share, size.measured],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


def held(path: Path, ids: tuple[str, ...], targets: tuple[str, ...]) -> Predictions | None:
    """The kept predictions, if the file exists and is intact."""
    try:
        found = read_tensors(path)
        tables: Mapping[str, Any] = {name: found.tensors[name] for name in _TABLES}
        low, high, digest = json.loads(found.metadata["made"])
        if digest != _digest(tables):
            return None
        scale = CostScale(float(low), float(high))
        return Predictions(query_ids=ids, targets=targets, scale=scale, **tables)
    except (CorruptError, DataError, ValueError, KeyError, TypeError):
        return None


def keep(path: Path, predictions: Predictions) -> None:
    """Keep predictions, whole or not at all."""
    tables = {name: np.ascontiguousarray(getattr(predictions, name)) for name in _TABLES}
    scale = predictions.scale
    made = json.dumps([scale.low, scale.high, _digest(tables)])
    with files.replacing_file(path) as temporary:
        temporary.write_bytes(save(tables, metadata={"made": made}))


def _digest(tables: Mapping[str, Any]) -> str:
    return hashlib.sha256(b"".join(tables[name].tobytes() for name in _TABLES)).hexdigest()
