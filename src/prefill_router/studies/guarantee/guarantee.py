"""Find the cheapest lam whose accuracy is guaranteed."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Estimate, Trial
from prefill_router.evaluation.bootstrap import chunks
from prefill_router.evaluation.weighted import Weights, divide, ones
from prefill_router.studies.guarantee.betting import enough, p_value
from prefill_router.studies.guarantee.losses import Losses, shuffled
from prefill_router.studies.guarantee.result import Guarantee, Tested

KEEP = 0.98
CONFIDENCE = 0.95
_ODDS = np.geomspace(1e4, 1e-4, 401)
LAMS: tuple[float, ...] = (1.0, *np.round(_ODDS / (1 + _ODDS), 6).tolist(), 0.0)
"""The lam values that are tested, falling: fixed beforehand, close together near both ends, and
short enough to be printed in full."""
Choice = Int[NDArray[np.int64], " query"]


def best_single(train: RoutingDataset) -> str:
    """The target of the highest accuracy on the train part; of several the first.

    Raises:
        DataError: Nothing was measured.
    """
    measured = (~np.isnan(train.correct)).sum(axis=0)
    if not measured.any():
        raise DataError("no training query has a label, so no target is known to be the best")
    accuracy = divide(np.nansum(train.correct, axis=0), measured.astype(np.float64))
    return train.pool.names[int(np.nan_to_num(accuracy, nan=-1).argmax())]


def guarantee(
    trial: Trial,
    *,
    best: str,
    keep: float = KEEP,
    confidence: float = CONFIDENCE,
    lams: Sequence[float] = LAMS,
    resamples: int = 1000,
    seed: int = 0,
) -> Guarantee:
    """Find the cheapest lam that keeps a share of the best single target's accuracy.

    With a probability of at least `confidence` over the draw of the queries, the accuracy at the
    lam that is found is at least `keep` times that of `best`, on all queries like these. It holds
    for any number of queries, if they are independent draws that nothing was fitted or chosen on,
    and for the queries on which both labels are measured: those left out must be like the others.

    Args:
        trial: A system on queries that it was not fitted on.
        best: The best single target, chosen on other queries: on the train part.
        keep: The share; above 1 asks for more than the best single target.
        confidence: Of the promise.
        lams: What is tested, falling; must be fixed before the labels are seen.
        resamples: For the intervals of what is expected; they take no part in the guarantee.
        seed: Of the resamples.

    Raises:
        ConfigError: An option makes no sense, or the trial has no such target.
        DataError: On no query are both labels measured.
    """
    _check(trial, best, keep, confidence, lams)
    column, order = trial.targets.index(best), shuffled(trial.query_ids)
    sequence: list[Tested] = []
    found: float | None = None
    for lam in lams:
        tested = _test(trial, lam, column, keep, 1 - confidence, order)
        sequence.append(tested)
        if tested.p_value > 1 - confidence:
            break
        found = lam
    shown = lams[0] if found is None else found
    losses = Losses.of(trial, trial.path.at(shown), column, keep)
    if not len(losses):
        raise DataError(
            f"no query has a label both of the chosen target and of {best!r}; score more answers"
        )
    needed = None
    if found is None:
        needed = enough(losses.scaled, losses.threshold, level=1 - confidence)
    numbers = _numbers(trial, trial.path.at(shown), column, resamples, seed)
    return Guarantee(
        lam=found,
        keep=keep,
        confidence=confidence,
        best=best,
        queries=len(losses),
        left_out=len(trial) - len(losses),
        sequence=tuple(sequence),
        needed=needed,
        advice=_advice(found, losses, needed),
        kept=numbers["kept"],
        accuracy=numbers["accuracy"],
        best_accuracy=numbers["best_accuracy"],
        savings=numbers["savings"],
    )


def _test(trial: Trial, lam: float, best: int, keep: float, level: float, order: Choice) -> Tested:
    losses = Losses.of(trial, trial.path.at(lam), best, keep)
    place = np.full(len(trial), -1)
    place[losses.known] = np.arange(len(losses))
    ordered = place[order]
    scaled = losses.scaled[ordered[ordered >= 0]]
    found = p_value(scaled, losses.threshold, level=level)
    return Tested(float(lam), found, len(losses), losses.kept)


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


def _advice(found: float | None, losses: Losses, needed: int | None) -> str:
    if found is not None:
        return ""
    if needed is None:
        return (
            f"at lam = 1 the router keeps {100 * losses.kept:.1f} % of the best single target's "
            "accuracy on these queries, so more of them won't help: promise less, or fit a better "
            "router"
        )
    return (
        f"{len(losses):,} labelled queries are too few for this promise: about {needed:,} would do "
        "with an even chance, if they are like these; or promise less, or with less confidence"
    )


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
