"""Evaluate a system's predictions against what happened."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import Regime, RoutingDataset, regimes
from prefill_router.evaluation.area import Axis, frontier
from prefill_router.evaluation.bands import Band, heights, places
from prefill_router.evaluation.bootstrap import Estimate, chunks
from prefill_router.evaluation.catalogue import definitions
from prefill_router.evaluation.coverage import Coverage
from prefill_router.evaluation.evaluation import Evaluation
from prefill_router.evaluation.metrics import REGIMES
from prefill_router.evaluation.mix import mix_of
from prefill_router.evaluation.operating import Curve, curve_of, max_lam_interval, steps_of
from prefill_router.evaluation.operating_points import OperatingPoints
from prefill_router.evaluation.predictions import Predictions
from prefill_router.evaluation.quality import QualityCheck
from prefill_router.evaluation.reasons import why_target_undefined, why_undefined
from prefill_router.evaluation.reliability import with_chance
from prefill_router.evaluation.scores import Scorer, Scores
from prefill_router.evaluation.trial import Trial
from prefill_router.evaluation.verdict import judge
from prefill_router.evaluation.weighted import ones
from prefill_router.policy import Policy
from prefill_router.progress import Progress, SilentProgress

DEFAULT_LAM = 0.5
"""Where the verdict is of a router for which no setting was chosen on train rows."""
Tables: TypeAlias = Mapping[tuple[str, str], Float[NDArray[np.float64], "_resample _column"]]


def evaluate(
    predictions: Predictions,
    dataset: RoutingDataset,
    *,
    resamples: int = 1000,
    seed: int = 0,
    step: float | None = None,
    axis: Axis = "inverse",
    policy: Policy | None = None,
    check: QualityCheck | None = None,
    max_cost: float | None = None,
    chosen: OperatingPoints | None = None,
    train: RoutingDataset | None = None,
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
        policy: How the choice is made of the predictions; the paper's if not given.
        check: Scores the answers, for a cascade; the probabilities stand in for it if not given.
        max_cost: Where AIQ ends, US dollars per query; the largest cost of the curve if not given.
        chosen: The settings that were chosen on train rows; the numbers at them aren't defined if
            not given.
        train: What was trained on, for the verdict, whose references are chosen there; no verdict
            if not given.
        progress: Shows how far the bootstrap is.

    Raises:
        DataError: The dataset lacks some queries, or nothing was measured on them.
        ConfigError: The dataset lacks some targets, or an option makes no sense.
    """
    trial = Trial.join(predictions, dataset, policy=policy, check=check)
    scorer = Scorer.of(trial, step=step, axis=axis, max_cost=max_cost, chosen=chosen)
    scores = scorer.score(ones(len(trial)))
    curve = curve_of(scorer, scores)
    tables, bands = _resample(scorer, curve, resamples, seed, progress or SilentProgress())
    names = {"headline": ("",), "targets": trial.targets, "regimes": tuple(map(str, REGIMES))}
    groups = {g: _estimates(g, columns, scores, tables) for g, columns in names.items()}
    on = frontier(scores.singles.cost, scores.singles.accuracy)[0]
    known = groups["headline"][""]["choice_auc"]
    lam = DEFAULT_LAM if chosen is None else chosen.worth
    judged = partial(judge, trial, lam=lam, resamples=resamples, seed=seed, choice_auc=known)
    return Evaluation(
        verdict=None if train is None else judged(train),
        chosen=chosen,
        queries=len(trial),
        labels=int((~np.isnan(trial.correct)).sum()),
        coverage=Coverage.of(trial),
        targets=trial.targets,
        headline=with_chance(groups["headline"][""]),
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
        mix=mix_of(scores.singles, trial.targets),
        resamples=resamples,
        seed=seed,
        definitions=_readings(trial, check, step, axis, max_cost),
    )


def _readings(
    trial: Trial,
    check: QualityCheck | None,
    step: float | None,
    axis: Axis,
    max_cost: float | None,
) -> dict[str, str]:
    said = check.description if check is not None else ""
    told = trial.policy.told()
    return definitions(step=step, axis=axis, max_cost=max_cost, policy=told, check=said)


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
    regime = np.where(trial.compared, regimes(trial.correct), str(Regime.UNMEASURED))
    counts = Counter(regime.tolist())
    return {str(regime): counts[str(regime)] for regime in Regime}
