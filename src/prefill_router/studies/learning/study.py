"""Fits on less and less, judged on the same test queries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split
from prefill_router.errors import ConfigError, DataError, FitError, MissingExtraError
from prefill_router.evaluation import Predictions, Trial
from prefill_router.evaluation.bootstrap import Estimate, chunks
from prefill_router.evaluation.weighted import Weights, ones
from prefill_router.fitting import FitConfig, Recipe, learn
from prefill_router.progress import Progress, SilentProgress
from prefill_router.studies.fitted import Failed
from prefill_router.studies.learning.advice import Axis, spread_of, trend_of, verdict_of
from prefill_router.studies.learning.keeping import held, keep, key_of
from prefill_router.studies.learning.numbers import NUMBERS, Judge, Number
from prefill_router.studies.learning.result import Curve, Learning, SizePoint
from prefill_router.studies.learning.thinning import FULL, Size, labels_of, sizes_for, thinned

PerDraw = Float[NDArray[np.float64], "resample draw"]
_LEAST_DRAWS = 2


@final
@dataclass(frozen=True)
class Plan:
    """How learning curves are drawn.

    Attributes:
        sizes: How much is kept; chosen for the data if empty, and all labels are always among them.
        draws: How often each size is drawn and fitted.
        resamples: Bootstrap resamples of test queries and draws.
        seed: Of everything that is drawn.
    """

    sizes: tuple[Size, ...] = ()
    draws: int = 3
    resamples: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < _LEAST_DRAWS:
            raise ConfigError(
                f"{self.draws} draws of each size; at least {_LEAST_DRAWS} are needed"
            )
        if self.resamples < 1:
            raise ConfigError(f"{self.resamples} resamples; curves need them, 200 is usual")
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}; it must be 0 or more")


def study_learning(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    drawn: Split,
    *,
    plan: Plan | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Learning:
    """Learn from shares of the labels and see how good that is on the test part.

    Args:
        dataset: Scored answers.
        recipes: By name.
        states: What their features read, see `fitting.gather`.
        drawn: The split; only its train and calibration parts are thinned and learned from.
        plan: How; the defaults if not given.
        folder: Keeps the predictions of each fit; interrupted, the work goes on from there.
        progress: Shows how far it is.

    Raises:
        FitError: A recipe can't be fitted with all labels.
        ConfigError: There is no recipe, or one's policy is learned.
    """
    if not recipes:
        raise ConfigError("there is no router to study; name at least one")
    for recipe in recipes.values():
        _ = recipe.fixed_policy
    plan, shown = plan or Plan(), progress or SilentProgress()
    sizes = tuple(dict.fromkeys((*(plan.sizes or sizes_for(dataset, drawn)), FULL)))
    work = _Work(dataset, tuple(states), drawn, plan, folder)
    train = dataset.select(drawn["train"])
    count = float(len(recipes) * len(sizes) * plan.draws)
    made: dict[str, list[_Fit]] = {name: [] for name in recipes}
    with shown.task("fits", total=count) as advance:
        for name, recipe in recipes.items():
            for fit in work.fits(recipe, sizes):
                made[name].append(fit)
                advance(note=f"{name} {fit.words}")
    curves = {name: _curve(name, work, sizes, fits, shown) for name, fits in made.items()}
    costs = train.observed_cost[~np.isnan(train.correct)]
    return Learning(
        curves=curves,
        queries=len(train),
        labels=labels_of(train),
        targets=dataset.pool.names,
        tested=len(drawn["test"]),
        label_cost=float(np.nanmean(costs)) if np.isfinite(costs).any() else float("nan"),
        draws=plan.draws,
        resamples=plan.resamples,
        seed=plan.seed,
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


@final
@dataclass(frozen=True, eq=False)
class _Work:
    dataset: RoutingDataset
    states: tuple[Activations, ...]
    drawn: Split
    plan: Plan
    folder: Path | None

    @property
    def test(self) -> RoutingDataset:
        return self.dataset.select(self.drawn["test"])

    def fits(self, recipe: Recipe, sizes: Sequence[Size]) -> Iterator[_Fit]:
        for size in sizes:
            for draw in range(self.plan.draws):
                yield self._fit(recipe, size, draw)

    def _fit(self, recipe: Recipe, size: Size, draw: int) -> _Fit:
        seed = self.plan.seed + draw
        less, kept = thinned(self.dataset, self.drawn, size, seed=seed)
        train, config = less.select(kept["train"]), FitConfig(recipe=recipe, seed=seed)
        found = _Fit(size, draw, len(train), labels_of(train), None, "", recipe)
        try:
            return replace(found, predictions=self._predicted(less, kept, config, size))
        except MissingExtraError:
            raise
        except (FitError, ConfigError, DataError) as error:
            if size == FULL:  # else it comes of having too little
                raise
            return replace(found, why=str(error))

    def _predicted(
        self, less: RoutingDataset, kept: Split, config: FitConfig, size: Size
    ) -> Predictions:
        test = self.test
        key = key_of(self.dataset, self.states, kept, config, size)
        path = None if self.folder is None else self.folder / f"{key}.safetensors"
        before = None if path is None else held(path, test.query_ids, test.pool.names)
        if before is not None:
            return before
        router = learn(less, self.states, kept, config=config)
        predictions = router.predict(test, stores=self.states)
        if path is not None:
            keep(path, predictions)
        return predictions


def _curve(
    name: str, work: _Work, sizes: Sequence[Size], fits: Sequence[_Fit], progress: Progress
) -> Curve:
    test, plan = work.test, work.plan
    judges = [
        None
        if f.predictions is None
        else Judge(Trial.join(f.predictions, test, policy=f.recipe.fixed_policy))
        for f in fits
    ]
    shape = (len(sizes), plan.draws)
    point = _judged(judges, ones(len(test)), shape)
    parts: list[dict[Number, NDArray[np.float64]]] = []
    drawn = chunks(len(test), count=plan.resamples, seed=plan.seed, width=len(test) * 4)
    with progress.task(f"judging {name}", total=float(plan.resamples)) as advance:
        for weights in drawn:
            parts.append(_judged(judges, weights, shape))
            advance(float(len(weights)))
    tables = {n: np.concatenate([part[n] for part in parts]) for n in NUMBERS}
    tables = {n: _redrawn(table, seed=plan.seed) for n, table in tables.items()}
    means = {n: _mean(values)[0] for n, values in point.items()}
    groups = [fits[i * plan.draws : (i + 1) * plan.draws] for i in range(len(sizes))]
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
    failed = tuple(Failed(fit.words, fit.why) for fit in fits if fit.why)
    return _advised(name, points, means, tables, failed)


def _advised(
    name: str,
    points: tuple[SizePoint, ...],
    means: Mapping[Number, NDArray[np.float64]],
    tables: Mapping[Number, NDArray[np.float64]],
    failed: tuple[Failed, ...],
) -> Curve:
    def axis(number: Number, *, deep: bool) -> Axis:
        on = [i for i, p in enumerate(points) if (p.size.measured is None) == deep]
        on.sort(key=lambda i: points[i].labels)
        labels = np.array([points[i].labels for i in on], dtype=np.float64)
        return Axis(labels, means[number][on], tables[number][:, on])

    trends = {n: trend_of(n, axis(n, deep=True)) for n in NUMBERS}
    spread = {n: spread_of(n, axis(n, deep=True), axis(n, deep=False)) for n in NUMBERS}
    full = next(p for p in points if p.size == FULL)
    verdict, because = verdict_of(trends, full)
    return Curve(
        name=name,
        points=points,
        trends=trends,
        spread=spread,
        verdict=verdict,
        because=because,
        failed=failed,
    )


def _judged(
    judges: Sequence[Judge | None], weights: Weights, shape: tuple[int, int]
) -> dict[Number, NDArray[np.float64]]:
    """Each number: [resample, size, draw]."""
    nothing = np.full(len(weights), np.nan)
    rows = [None if judge is None else judge.numbers(weights) for judge in judges]
    return {
        n: np.stack([nothing if row is None else row[n] for row in rows], axis=1).reshape(
            len(weights), *shape
        )
        for n in NUMBERS
    }


def _redrawn(table: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
    """The mean over draws drawn with replacement, the same ones at every size: [resample, size]."""
    resamples, _, draws = table.shape
    picked = np.random.default_rng([seed, 3]).integers(0, draws, (resamples, 1, draws))
    return _mean(np.take_along_axis(table, np.broadcast_to(picked, table.shape), axis=2))


def _mean(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the last axis of what is known; NaN where nothing is."""
    known = np.isfinite(table)
    total = np.where(known, table, 0).sum(axis=-1)
    count = known.sum(axis=-1)
    result: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return result
