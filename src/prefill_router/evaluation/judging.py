"""Evaluate a system's predictions against what happened, and compare two systems."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import Regime, RoutingDataset, regimes
from prefill_router.evaluation.area import Axis, frontier
from prefill_router.evaluation.bands import Band, heights, places
from prefill_router.evaluation.bootstrap import Estimate, chunks
from prefill_router.evaluation.catalogue import definitions
from prefill_router.evaluation.evaluation import Comparison, Evaluation
from prefill_router.evaluation.metrics import REGIMES
from prefill_router.evaluation.operating import Curve, curve_of, max_lam_interval, steps_of
from prefill_router.evaluation.predictions import Predictions
from prefill_router.evaluation.reasons import why_target_undefined, why_undefined
from prefill_router.evaluation.scores import Scorer, Scores
from prefill_router.evaluation.trial import Trial
from prefill_router.evaluation.weighted import ones
from prefill_router.progress import Progress, SilentProgress

Tables: TypeAlias = Mapping[tuple[str, str], Float[NDArray[np.float64], "_resample _column"]]


def evaluate(
    predictions: Predictions,
    dataset: RoutingDataset,
    *,
    resamples: int = 1000,
    seed: int = 0,
    step: float | None = None,
    axis: Axis = "inverse",
    progress: Progress | None = None,
) -> Evaluation:
    """Judge predictions by what happened. Rows are joined by query id, columns by target.

    Args:
        predictions: What is judged; the queries that it holds are evaluated.
        dataset: Has at least these queries and targets; missing labels are left out.
        resamples: Bootstrap resamples for the intervals; 0 for none.
        seed: Another seed, other resamples.
        step: Reads the curve on a grid of lam, as the paper does; exactly if not given.
        axis: How cost is normalised.
        progress: Shows how far the bootstrap is.

    Raises:
        DataError: The dataset lacks some queries, or nothing was measured on them.
        ConfigError: The dataset lacks some targets, or an option makes no sense.
    """
    trial = Trial.join(predictions, dataset)
    scorer = Scorer.of(trial, step=step, axis=axis)
    scores = scorer.score(ones(len(trial)))
    curve = curve_of(scorer, scores)
    tables, bands = _resample(scorer, curve, resamples, seed, progress or SilentProgress())
    names = {"headline": ("",), "targets": trial.targets, "regimes": tuple(map(str, REGIMES))}
    groups = {g: _estimates(g, columns, scores, tables) for g, columns in names.items()}
    on = frontier(scores.singles.cost, scores.singles.accuracy)[0]
    return Evaluation(
        queries=len(trial),
        labels=int((~np.isnan(trial.correct)).sum()),
        targets=trial.targets,
        headline=groups["headline"][""],
        per_target=groups["targets"],
        regimes=groups["regimes"],
        regime_sizes=_regime_sizes(trial),
        anchors={name: float(value[0]) for name, value in vars(scores.anchors).items()},
        curve=curve,
        max_lam=max_lam_interval(scorer, scores, curve),
        steps=steps_of(scorer, scores, curve),
        frontier=tuple(name for name, best in zip(trial.targets, on, strict=True) if best),
        raw_band=bands[0],
        normalised_band=bands[1],
        resamples=resamples,
        seed=seed,
        definitions=definitions(step=step, axis=axis),
    )


def compare(
    first: Predictions,
    second: Predictions,
    dataset: RoutingDataset,
    *,
    resamples: int = 1000,
    seed: int = 0,
    step: float | None = None,
    axis: Axis = "inverse",
    progress: Progress | None = None,
) -> Comparison:
    """Paired differences of two systems: every resample uses the same queries for both.

    Args:
        first: One system.
        second: The other, on the same queries and targets, in any order.
        dataset: What happened.
        resamples: Bootstrap resamples.
        seed: Another seed, other resamples.
        step: Reads the curves on a grid of lam; exactly if not given.
        axis: How cost is normalised.
        progress: Shows how far the bootstrap is.

    Raises:
        DataError: The systems were not run on the same queries and targets, or the dataset lacks
            some of them.
    """
    aligned = second.select(first.query_ids, targets=first.targets)
    _require_same(first, second)
    trials = [Trial.join(predictions, dataset) for predictions in (first, aligned)]
    scorers = [Scorer.of(trial, step=step, axis=axis) for trial in trials]
    points = [scorer.score(ones(len(first))) for scorer in scorers]
    width = max(scorer.width for scorer in scorers)
    differences: list[dict[str, NDArray[np.float64]]] = []
    with (progress or SilentProgress()).task("paired bootstrap", total=resamples) as advance:
        for weights in chunks(len(first), count=resamples, seed=seed, width=width):
            differences.append(_minus(*(scorer.score(weights) for scorer in scorers)))
            advance(len(weights))
    return Comparison(
        first={name: float(value[0]) for name, value in points[0].headline.items()},
        second={name: float(value[0]) for name, value in points[1].headline.items()},
        difference={
            name: Estimate.of(
                float(value[0]),
                np.concatenate([np.zeros(0), *(chunk[name] for chunk in differences)]),
                reason=why_undefined(points[0], name),
            )
            for name, value in _minus(*points).items()
        },
    )


def _require_same(first: Predictions, second: Predictions) -> None:
    # The other direction is checked by `select`.
    first.select(second.query_ids, targets=second.targets)


def _minus(first: Scores, second: Scores) -> dict[str, NDArray[np.float64]]:
    return {name: value - second.headline[name] for name, value in first.headline.items()}


def _resample(
    scorer: Scorer, curve: Curve, resamples: int, seed: int, progress: Progress
) -> tuple[Tables, tuple[Band, Band]]:
    """All statistics of all resamples, and the bands of the curves."""
    at = places(curve.mean_cost, ratios=True), places(curve.normalised_cost)
    tables: list[Tables] = []
    raw, normalised = [np.zeros((0, len(at[0])))], [np.zeros((0, len(at[1])))]
    with progress.task("bootstrap", total=resamples) as advance:
        for weights in chunks(len(scorer.trial), count=resamples, seed=seed, width=scorer.width):
            scores = scorer.score(weights)
            tables.append(scores.tables())
            raw.append(heights(scores.points.cost, scores.points.accuracy, at[0]))
            x = scores.anchors.cheapness(scores.points.cost, axis=scorer.axis)
            normalised.append(heights(x, scores.anchors.height(scores.points.accuracy), at[1]))
            advance(len(weights))
    together = {key: np.concatenate([table[key] for table in tables]) for key in _keys(tables)}
    bands = Band.of(at[0], np.concatenate(raw)), Band.of(at[1], np.concatenate(normalised))
    return together, bands


def _keys(tables: list[Tables]) -> list[tuple[str, str]]:
    return list(tables[0]) if tables else []


def _estimates(
    group: str, columns: tuple[str, ...], scores: Scores, tables: Tables
) -> dict[str, dict[str, Estimate]]:
    """By column (a target, a regime, or the one of the headline), then by name."""
    result: dict[str, dict[str, Estimate]] = {column: {} for column in columns}
    for key, values in scores.tables().items():
        if key[0] != group:
            continue
        resampled = tables.get(key, np.zeros((0, len(columns))))
        for place, column in enumerate(columns):
            why = why_target_undefined(key[1]) if columns[0] else why_undefined(scores, key[1])
            result[column][key[1]] = Estimate.of(
                float(values[0, place]), resampled[:, place], reason=why
            )
    return result


def _regime_sizes(trial: Trial) -> dict[str, int]:
    counts = Counter(regimes(trial.correct).tolist())
    return {str(regime): counts[str(regime)] for regime in Regime}
