"""Find the cheapest lam whose accuracy is guaranteed."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Estimate, Trial
from prefill_router.evaluation.bootstrap import chunks
from prefill_router.evaluation.weighted import Weights, divide, ones
from prefill_router.studies.guarantee.advice import NONE_NEEDED, Advice
from prefill_router.studies.guarantee.hypotheses import Assumption, Hypotheses
from prefill_router.studies.guarantee.missing import Choice
from prefill_router.studies.guarantee.result import Guarantee

KEEP = 0.98
CONFIDENCE = 0.95
_ODDS = np.geomspace(1e4, 1e-4, 401)
LAMS: tuple[float, ...] = (1.0, *np.round(_ODDS / (1 + _ODDS), 6).tolist(), 0.0)
"""The lam values that are tested, falling: fixed beforehand, close together near both ends, and
short enough to be printed in full."""


def best_single(train: RoutingDataset) -> str:
    """The target that no other beats on the train part, on the queries that both answered.

    Where no label is missing it is that of the highest accuracy, of several the first. A missing
    label is never an advantage: of two targets, the one that lacks labels on the other's queries
    has to be better by as much as the labels that it has leave open, so a few lucky ones won't do.

    Raises:
        DataError: Nothing was measured.
    """
    measured = np.flatnonzero(~np.isnan(train.correct).all(axis=0))
    if not len(measured):
        raise DataError("no training query has a label, so no target is known to be the best")
    labels = train.correct[:, measured]
    known = (~np.isnan(labels)).astype(np.float64)
    common = np.maximum(known.T @ known, 0.5)  # of no query: as open as can be, and not infinite
    right = np.nan_to_num(labels).T @ known
    open_to = np.sqrt(1 / common - 1 / known.sum(axis=0))
    margin = (right - right.T) / common - open_to + open_to.T
    return train.pool.names[int(measured[margin.min(axis=1).argmax()])]


def guarantee(
    trial: Trial,
    *,
    best: str,
    keep: float = KEEP,
    confidence: float = CONFIDENCE,
    lams: Sequence[float] = LAMS,
    assume: Assumption = "nothing",
    queries: Sequence[Query] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Guarantee:
    """Find the cheapest lam that keeps a share of the best single target's accuracy.

    With a probability of at least `confidence` over the draw of the queries, the accuracy at the
    lam that is found is at least `keep` times that of `best`, on all queries like these. It holds
    for any number of queries, if they are independent draws that nothing was fitted or chosen on.
    A label that is missing counts as the worst that it could be, so it holds whatever made it
    missing.

    Args:
        trial: A system on queries that it was not fitted on.
        best: The best single target, chosen on other queries: on the train part.
        keep: The share; above 1 asks for more than the best single target.
        confidence: Of the promise.
        lams: What is tested, falling; must be fixed before the labels are seen.
        assume: `missing-at-random` leaves queries with missing labels out, at every lam where they
            are spread over domains, choices and difficulty as chance would: for those who know
            that whether an answer was measured has nothing to do with the query or the answer.
        queries: Those of the trial, found by id, for their benchmarks and domains.
        resamples: For the intervals of what is expected; they take no part in the guarantee.
        seed: Of the resamples, and of the draws that tell how labels are missing.

    Raises:
        ConfigError: An option makes no sense, or the trial has no such target.
        DataError: On no query are both labels measured.
    """
    _check(trial, best, keep, confidence, lams)
    column, level = trial.targets.index(best), 1 - confidence
    tests = Hypotheses(trial, column, keep, level, assume, queries, seed)
    sequence = tests.sequence(lams)
    kept = [tested for tested in sequence if tested.p_value <= level]
    shown = kept[-1] if kept else sequence[0]
    losses, missing = tests.losses(shown.lam), tests.missing(shown.lam)
    if not losses.measured.any():
        raise DataError(
            f"no query has a label both of the chosen target and of {best!r}; score more answers"
        )
    advice = NONE_NEEDED if kept else Advice.of(losses, missing, bounded=shown.bounded, level=level)
    return Guarantee(
        lam=shown.lam if kept else None,
        keep=keep,
        confidence=confidence,
        best=best,
        assume=assume,
        bounded=shown.bounded,
        queries=shown.queries,
        missing=missing,
        least=losses.least,
        sequence=sequence,
        needed=advice.queries,
        labels=advice.labels,
        advice=advice.words,
        **_numbers(trial, trial.path.at(shown.lam), column, resamples, seed),
    )


def _numbers(
    trial: Trial, choice: Choice, best: int, resamples: int, seed: int
) -> dict[str, Estimate]:
    """What is to be expected, with bootstrap intervals; the same queries for both."""
    tables = [trial.of_choice(table, choice) for table in (trial.correct, trial.paid)]
    alone = [table[:, best] for table in (trial.correct, trial.observed_cost)]
    both = [~(np.isnan(a) | np.isnan(b)) for a, b in zip(tables, alone, strict=True)]
    columns = [
        np.where(k, np.nan_to_num(c), 0) for k, c in zip(both * 2, tables + alone, strict=True)
    ]
    values = np.stack([*columns, both[0].astype(np.float64)], axis=1)

    def read(weights: Weights) -> dict[str, NDArray[np.float64]]:
        right, cost, best_right, best_cost, known = (weights @ values).T
        return {
            "kept": divide(right, best_right),
            "accuracy": divide(right, known),
            "best_accuracy": divide(best_right, known),
            "savings": 1 - divide(cost, best_cost),
        }

    point = read(ones(len(trial)))
    drawn = [read(w) for w in chunks(len(trial), count=resamples, seed=seed, width=len(trial))]
    reasons = {
        "kept": "the best single target answers none of these queries correctly",
        "savings": "no cost is known, or the best single target is free",
    }
    return {
        name: Estimate.of(
            float(value[0]),
            np.concatenate([np.zeros(0), *(chunk[name] for chunk in drawn)]),
            reason=reasons.get(name, ""),
        )
        for name, value in point.items()
    }


def _check(trial: Trial, best: str, keep: float, confidence: float, lams: Sequence[float]) -> None:
    if best not in trial.targets:
        raise ConfigError(f"there is no target {best!r}; the targets are {list(trial.targets)}")
    if not (math.isfinite(keep) and 0 < keep <= 2):
        raise ConfigError(f"keep is {keep}; it must be above 0 and at most 2, such as 0.98")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}; it must be between 0 and 1, such as 0.95")
    falling = all(a > b for a, b in pairwise(lams))
    if not lams or not falling or not (lams[-1] >= 0 and lams[0] <= 1):
        raise ConfigError("lams must fall within [0, 1], with at least one of them")
