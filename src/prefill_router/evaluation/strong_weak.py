"""A strong and a weak target: accuracy over the share of queries sent to the strong one.

RouteLLM (Ong et al., 2024): APGR is the part of the accuracy gap between the two that is closed, on
average over that share; CPT(x) is the share that closes the part x.
"""

from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import SAME, PerResample, Weights, divide, mean_over
from prefill_router.evaluation.curve import PathSums
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.policy import Threshold

CPT = {"cpt_20": 0.2, "cpt_50": 0.5, "cpt_80": 0.8}


@final
@dataclass(frozen=True, eq=False)
class StrongWeak:
    """The changes between two targets along the path, sorted once.

    Attributes:
        strong: The labels of the strong target, NaN where missing.
        weak: The labels of the weak target, NaN where missing.
        judged: 1 where either label is known; shares are of these queries.
        sums: Sums along the path of: strong chosen, label, measured (missing as 0).
    """

    strong: Float[NDArray[np.float64], " query"]
    weak: Float[NDArray[np.float64], " query"]
    judged: Float[NDArray[np.float64], " query"]
    sums: PathSums

    @classmethod
    def of(cls, trial: Trial) -> "StrongWeak | None":
        """The two targets of the policy, or of the pool; None where there aren't two."""
        pair = _pair(trial)
        if pair is None:
            return None
        strong, weak = pair
        unknown = np.isnan(trial.correct)
        judged = ~(unknown[:, strong] & unknown[:, weak])
        return cls(
            trial.correct[:, strong],
            trial.correct[:, weak],
            judged.astype(np.float64),
            PathSums.of(trial, partial(_three, trial, judged, strong)),
        )

    def scores(self, weights: Weights) -> dict[str, PerResample]:
        """APGR and CPT; NaN where the strong target isn't the better one."""
        weak, strong = mean_over(weights, self.weak), mean_over(weights, self.strong)
        gap = np.where(strong - weak > SAME, strong - weak, 0)
        share, accuracy = self._curve(weights, weak, strong)
        closed = divide(accuracy - weak[:, None], gap[:, None])
        slices = np.diff(share, axis=1) * (closed[:, 1:] + closed[:, :-1]) / 2
        reached = {name: _crossing(share, closed, part) for name, part in CPT.items()}
        return {"apgr": slices.sum(axis=1), **reached}

    def _curve(
        self, weights: Weights, weak: PerResample, strong: PerResample
    ) -> tuple[Float[NDArray[np.float64], "resample point"], ...]:
        """Share of strong calls, rising, and accuracy, from the weak target to the strong one."""
        total, label, measured = self.sums.totals(weights)
        share = divide(total, (weights @ self.judged)[:, None])
        accuracy = divide(label, measured)
        # Points without any measured query are moved onto the weak target's.
        unknown = np.isnan(accuracy) | np.isnan(share)
        share = np.where(unknown, 0, np.round(share, 12))
        accuracy = np.where(unknown, weak[:, None], accuracy)
        order = np.argsort(share, axis=1, kind="stable")
        ends = np.zeros((len(weights), 1)), np.ones((len(weights), 1))
        share = np.take_along_axis(share, order, axis=1)
        accuracy = np.take_along_axis(accuracy, order, axis=1)
        return (
            np.concatenate([ends[0], share, ends[1]], axis=1),
            np.concatenate([weak[:, None], accuracy, strong[:, None]], axis=1),
        )


def _pair(trial: Trial) -> tuple[int, int] | None:
    """The columns of the strong and the weak target."""
    policy = trial.policy
    if isinstance(policy, Threshold):
        return trial.targets.index(policy.strong), trial.targets.index(policy.weak)
    if len(trial.targets) != 2:
        return None
    both = trial.correct[trial.compared & ~np.isnan(trial.correct).any(axis=1)]
    if not len(both):
        return None
    return (0, 1) if both[:, 0].mean() > both[:, 1].mean() else (1, 0)


def _three(
    trial: Trial,
    judged: Bool[NDArray[np.bool_], " query"],
    strong: int,
    query: NDArray[np.int64],
    target: NDArray[np.int64],
) -> Float[NDArray[np.float64], "row 3"]:
    label = trial.correct[query, target]
    columns = [(target == strong) & judged[query], np.nan_to_num(label), ~np.isnan(label)]
    return np.stack(columns, axis=1).astype(np.float64)


def _crossing(
    share: Float[NDArray[np.float64], "resample point"],
    closed: Float[NDArray[np.float64], "resample point"],
    part: float,
) -> PerResample:
    """The lowest share at which the part is closed, by linear interpolation."""
    rows = np.arange(len(share))
    # The first point closes nothing and the last everything, so there is a crossing.
    after = np.maximum((closed >= part).argmax(axis=1), 1)
    x0, x1 = share[rows, after - 1], share[rows, after]
    y0, y1 = closed[rows, after - 1], closed[rows, after]
    return np.where(np.isnan(y1), np.nan, x0 + divide(part - y0, y1 - y0) * (x1 - x0))
