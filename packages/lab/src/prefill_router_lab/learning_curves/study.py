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
from prefill_router.progress import Advance, Progress, SilentProgress
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
from prefill_router_lab.learning_curves.subsamples import choose_sizes, count_labels, thin


def study_learning(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    split: Split,
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
        split: The split; only its train and calibration parts are subsampled and used for fitting.
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
    options, bar = options or LearningOptions(), progress or SilentProgress()
    sizes = tuple(dict.fromkeys((*(options.sizes or choose_sizes(dataset, split)), FULL)))
    work = _LearningWork(dataset, tuple(states), split, recipes, options, folder)
    fits_by_recipe = _fit_subsets(work, sizes, engine or LocalEngine(), bar)
    train = dataset.select(split["train"])
    return LearningStudy(
        curves={
            name: _judge_curve(name, work, sizes, fits, bar)
            for name, fits in fits_by_recipe.items()
        },
        queries=len(train),
        labels=count_labels(train),
        targets=dataset.pool.names,
        tested=len(split["test"]),
        label_cost=_mean_label_cost(train),
        draws=options.draws,
        resamples=options.resamples,
        seed=options.seed,
    )


def _mean_label_cost(train: RoutingDataset) -> float:
    """The mean cost of an answer with a label, in US dollars; NaN where no cost is known."""
    costs = train.observed_cost[~np.isnan(train.correct)]
    return float(np.nanmean(costs)) if np.isfinite(costs).any() else float("nan")


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


_FitKey = tuple[str, Size, int]
"""The name of a recipe, a size, and the number of the draw."""


@final
@dataclass(frozen=True, eq=False)
class _LearningWork:
    dataset: RoutingDataset
    states: tuple[Activations, ...]
    split: Split
    recipes: Mapping[str, Recipe]
    options: LearningOptions
    folder: Path | None

    @property
    def test(self) -> RoutingDataset:
        return self.dataset.select(self.split["test"])

    def prepare(self, key: _FitKey) -> tuple[RoutingDataset, Split, FitConfig, _Fit]:
        """The inputs of a fit, and the fit without its predictions."""
        name, size, draw = key
        seed, recipe = self.options.seed + draw, self.recipes[name]
        sample, split = thin(self.dataset, self.split, size, seed=seed)
        train, config = sample.select(split["train"]), FitConfig(recipe=recipe, seed=seed)
        return (
            sample,
            split,
            config,
            _Fit(size, draw, len(train), count_labels(train), None, "", recipe),
        )

    def path(self, split: Split, config: FitConfig, size: Size) -> Path | None:
        if self.folder is None:
            return None
        key = make_key(self.dataset, self.states, split, config, size)
        return self.folder / f"{key}.safetensors"

    def load(self, key: _FitKey) -> _Fit | None:
        _, split, config, fit = self.prepare(key)
        path, test = self.path(split, config, fit.size), self.test
        predictions = (
            None if path is None else load_predictions(path, test.query_ids, test.pool.names)
        )
        return None if predictions is None else replace(fit, predictions=predictions)

    def save(self, key: _FitKey, fit: _Fit) -> None:
        _, split, config, _ = self.prepare(key)
        path = self.path(split, config, fit.size)
        if path is not None and fit.predictions is not None:
            save_predictions(path, fit.predictions)


def _fit_subsets(
    work: _LearningWork, sizes: Sequence[Size], engine: Engine, progress: Progress
) -> dict[str, Sequence[_Fit]]:
    """The fits of each recipe: every draw of the first size, then of the next."""
    draws = work.options.draws
    keys = [(name, size, d) for name in work.recipes for size in sizes for d in range(draws)]
    with progress.task("fits", total=float(len(keys))) as advance:

        def finish(key: _FitKey, fit: _Fit) -> _Fit:
            advance(note=f"{key[0]} {fit.words}")
            return fit

        fits = engine.map(_fit_subset, work, keys, load=work.load, keep=work.save, finish=finish)
    each = len(sizes) * draws
    return {name: fits[i * each : (i + 1) * each] for i, name in enumerate(work.recipes)}


def _fit_subset(work: _LearningWork, key: _FitKey, progress: Progress) -> _Fit:
    del progress
    dataset, split, config, fit = work.prepare(key)
    try:
        router = learn(dataset, work.states, split, config=config)
        return replace(fit, predictions=router.predict(work.test, stores=work.states))
    except MissingExtraError:
        raise
    except (FitError, ConfigError, DataError) as error:
        if fit.size == FULL:  # a smaller size may fail for lack of data
            raise
        return replace(fit, why=str(error))


def _judge_curve(
    name: str, work: _LearningWork, sizes: Sequence[Size], fits: Sequence[_Fit], progress: Progress
) -> LearningCurve:
    test, draws = work.test, work.options.draws
    judges = [
        None
        if f.predictions is None
        else FitJudge(Trial.join(f.predictions, test, policy=f.recipe.fixed_policy))
        for f in fits
    ]
    point = _judge(judges, ones(len(test)), (len(sizes), draws))
    with progress.task(f"judging {name}", total=float(work.options.resamples)) as advance:
        tables = _resample_means(judges, len(test), (len(sizes), draws), work.options, advance)
    means = {n: _average_known(values)[0] for n, values in point.items()}
    groups = [fits[i * draws : (i + 1) * draws] for i in range(len(sizes))]
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
    return _make_curve(name, points, means, tables, failed)


def _resample_means(
    judges: Sequence[FitJudge | None],
    queries: int,
    shape: tuple[int, int],
    options: LearningOptions,
    advance: Advance,
) -> dict[Number, NDArray[np.float64]]:
    """Each metric over resampled test queries and draws: [resample, size]."""
    parts: list[dict[Number, NDArray[np.float64]]] = []
    count, width = options.resamples, queries * 4
    for weights in chunks(queries, count=count, seed=options.seed, width=width):
        parts.append(_judge(judges, weights, shape))
        advance(float(len(weights)))
    tables = {n: np.concatenate([part[n] for part in parts]) for n in NUMBERS}
    return {n: _resample_draws(table, seed=options.seed) for n, table in tables.items()}


def _make_curve(
    name: str,
    points: tuple[SizePoint, ...],
    means: Mapping[Number, NDArray[np.float64]],
    tables: Mapping[Number, NDArray[np.float64]],
    failures: tuple[RecipeFailure, ...],
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
        failures=failures,
    )


def _judge(
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


def _resample_draws(table: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
    """Bootstrap means over the draws, with the same indices at every size: [resample, size]."""
    resamples, _, draws = table.shape
    indices = np.random.default_rng([seed, 3]).integers(0, draws, (resamples, 1, draws))
    return _average_known(np.take_along_axis(table, np.broadcast_to(indices, table.shape), axis=2))


def _average_known(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the known values over the last axis; NaN where none is known."""
    is_known = np.isfinite(table)
    total = np.where(is_known, table, 0).sum(axis=-1)
    count = is_known.sum(axis=-1)
    result: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return result


_TABLES = ("correctness", "estimated_cost")


def make_key(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    split: Split,
    config: FitConfig,
    size: Size,
) -> str:
    """A file name that identifies these predictions: a digest of everything they depend on."""
    inputs = {
        "package": __version__,
        "dataset": dataset.fingerprint,
        "costs": hashlib.sha256(np.nan_to_num(dataset.observed_cost).tobytes()).hexdigest(),
        "pool": [repr(target) for target in dataset.pool],
        "states": sorted(json.dumps(s.provenance.to_dict(), sort_keys=True) for s in states),
        "split": split.to_dict(),
        "config": config.to_dict(),
        "size": [size.share, size.measured],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:24]


def load_predictions(
    path: Path, ids: tuple[str, ...], targets: tuple[str, ...]
) -> Predictions | None:
    """The kept predictions, if the file exists and is intact."""
    try:
        file = read_tensors(path)
        tables: Mapping[str, Any] = {name: file.tensors[name] for name in _TABLES}
        low, high, digest = json.loads(file.metadata["made"])
        if digest != _digest(tables):
            return None
        scale = CostScale(float(low), float(high))
        return Predictions(query_ids=ids, targets=targets, scale=scale, **tables)
    except (CorruptError, DataError, ValueError, KeyError, TypeError):
        return None


def save_predictions(path: Path, predictions: Predictions) -> None:
    """Keep predictions, whole or not at all."""
    tables = {name: np.ascontiguousarray(getattr(predictions, name)) for name in _TABLES}
    scale = predictions.scale
    content = json.dumps([scale.low, scale.high, _digest(tables)])
    with files.replacing_file(path) as temporary:
        temporary.write_bytes(save(tables, metadata={"made": content}))


def _digest(tables: Mapping[str, Any]) -> str:
    return hashlib.sha256(b"".join(tables[name].tobytes() for name in _TABLES)).hexdigest()
