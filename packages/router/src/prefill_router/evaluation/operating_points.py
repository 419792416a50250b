"""The settings of a router that are chosen on train rows, out of fold.

A maximum over lam on the judged queries is biased upwards by selection. So the lam values at which
a router is used and reported are chosen on out-of-fold predictions for train rows, and only
measured on the judged ones.

The setting that a router is used at is the cheapest that loses at most a few points of accuracy to
the best single target. One standard error is added to the loss, so few labels choose a cautious
setting (docs/decisions/0031-the-setting.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import SAME, known_mean, ones
from prefill_router.evaluation.curve import LambdaSweep
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.money import list_price
from prefill_router.policy import OperatingPoints

PerPoint = Float[NDArray[np.float64], " point"]
Goal = Literal["accuracy", "balanced", "savings"]
BUDGETS = (0.2, 0.35, 0.5, 0.7)
"""Budgets at which a router is judged, as shares of the best single target's mean cost."""
MARGIN = 0.01
"""A setting is as accurate as the best single target if it loses less than one point to it."""
_NEAR = 1.05
"""A setting that costs a twentieth more than the cheapest target is still at its price. What a
target's answers cost differs by as much from one set of queries to the next."""
_MOST = 400
"""Settings among which a cautious one is sought; neighbouring ones differ by few queries."""


@final
@dataclass(frozen=True, kw_only=True)
class SettingRule:
    """How the setting that a router is used at is chosen.

    Attributes:
        lose: The points of accuracy that it may lose to the best single target, one standard error
            included; None for the most accurate setting.
        max_cost: The most that 1,000 queries may cost on average, US dollars; None for no limit.

    Raises:
        ConfigError: A number is out of range.
    """

    lose: float | None = 2.0
    max_cost: float | None = None

    def __post_init__(self) -> None:
        if self.lose is not None and not 0 <= self.lose <= 100:
            raise ConfigError(f"lose is {self.lose}; give points of accuracy, from 0 to 100")
        if self.max_cost is not None and not self.max_cost > 0:
            raise ConfigError(
                f"the highest cost is {self.max_cost}; give US dollars per 1,000 queries, above 0"
            )

    @classmethod
    def of_goal(cls, goal: Goal, *, max_cost: float | None = None) -> "SettingRule":
        """The rule of a goal: the most accurate setting, or at most 2 or 5 points lost."""
        lose = {"accuracy": None, "balanced": 2.0, "savings": 5.0}[goal]
        return cls(lose=lose, max_cost=max_cost)


def choose_operating_points(
    trial: Trial, rule: SettingRule | None = None
) -> OperatingPoints | None:
    """The settings that are best on train rows.

    Args:
        trial: Out-of-fold predictions for train rows, with their labels.
        rule: How the setting in use is chosen; the default rule if not given.

    Returns:
        None where no row has the outcomes of all targets.
    """
    if not trial.compared.any():
        return None
    curve = _TrainCurve.of(trial)
    setting, words = curve.choose(rule or SettingRule())
    return OperatingPoints(
        accurate=curve.most_accurate(),
        thrifty=curve.cheapest_as_accurate(),
        setting=setting,
        best=trial.targets[curve.best],
        level=curve.choose(SettingRule(lose=100 * MARGIN))[0],
        budgets=tuple((share, curve.within(share * curve.best_cost)) for share in BUDGETS),
        cheapest=curve.within(_NEAR * curve.cheapest_cost),
        rule=words,
    )


@final
@dataclass(frozen=True, eq=False)
class _TrainCurve:
    """Every setting on the compared train rows, by rising lam.

    Attributes:
        lam: A lam within each setting's interval.
        accuracy: Mean label.
        cost: Mean observed cost, US dollars; NaN where unknown.
        loss: The best single target's accuracy minus the setting's, plus one standard error; NaN
            for settings where it wasn't computed.
        best: The best single target's column.
        best_accuracy: Its accuracy.
        best_cost: Its mean cost, US dollars.
        cheapest_cost: That of the cheapest single target.
    """

    lam: PerPoint
    accuracy: PerPoint
    cost: PerPoint
    loss: PerPoint
    best: int
    best_accuracy: float
    best_cost: float
    cheapest_cost: float

    @classmethod
    def of(cls, trial: Trial) -> "_TrainCurve":
        sweep, same = LambdaSweep.of(trial), ones(len(trial)) * trial.compared
        points = sweep.points(ones(len(trial)))
        label, price = (known_mean(same, t)[0] for t in (trial.single_label, trial.single_cost))
        best = int(np.nan_to_num(label, nan=-1.0).argmax())
        lam = (sweep.lam + np.append(sweep.lam[1:], 1.0)) / 2
        lam[-1] = 1.0
        cheapest = float(np.nanmin(price)) if not np.isnan(price).all() else np.nan
        anchors = best, float(label[best]), float(price[best]), cheapest
        losses = _measure_losses(trial, lam, best)
        return cls(lam, points.accuracy[0], points.cost[0], losses, *anchors)

    def most_accurate(self, among: NDArray[np.bool_] | None = None) -> float:
        """The lam of the highest accuracy; of several, the cheapest."""
        height = self.accuracy if among is None else np.where(among, self.accuracy, -np.inf)
        top = height >= np.nanmax(height) - SAME
        cost = np.where(np.isnan(self.cost), np.inf, self.cost)
        if np.isfinite(cost[top]).any():
            return float(self.lam[np.argmin(np.where(top, cost, np.inf))])
        return float(self.lam[np.argmax(top)])

    def cheapest_as_accurate(self) -> float | None:
        """The lam of the lowest cost that is as accurate as the best single target and cheaper."""
        good = (self.accuracy >= self.best_accuracy - SAME) & (self.cost < self.best_cost)
        return float(self.lam[np.argmin(np.where(good, self.cost, np.inf))]) if good.any() else None

    def choose(self, rule: SettingRule) -> tuple[float, str]:
        """The setting of a rule, and what is true of it, in words."""
        within, limit = np.ones(len(self.lam), dtype=np.bool_), ""
        if rule.max_cost is not None:
            most = f"{list_price(rule.max_cost)} per 1,000"
            within, limit = self.cost <= rule.max_cost / 1000, f" at {most}"
            if not within.any():
                cheapest = float(self.lam[np.nanargmin(self.cost)]) if self.is_priced else 1.0
                return cheapest, f"the cheapest: none costs {most} or less"
        if rule.lose is None:
            return self.most_accurate(within), f"the most accurate{limit}"
        good = within & (self.loss <= rule.lose / 100)
        if not good.any():
            lacking = f"none surely loses less than {rule.lose:g} points to the best target"
            return self.most_accurate(within), f"the most accurate{limit}: {lacking}"
        if not self.is_priced:
            return self.most_accurate(within), "the most accurate: no cost is known"
        place = np.argmin(np.where(good & ~np.isnan(self.cost), self.cost, np.inf))
        words = f"the cheapest{limit} that loses at most {rule.lose:g} points to the best target"
        return float(self.lam[place]), words

    @property
    def is_priced(self) -> bool:
        """Whether the cost of any setting is known."""
        return not np.isnan(self.cost).all()

    def within(self, budget: float) -> float | None:
        """The highest lam whose mean cost is within a budget; None where there is none."""
        good = self.cost <= budget
        return float(self.lam[np.flatnonzero(good)[-1]]) if good.any() else None


def _measure_losses(trial: Trial, lam: PerPoint, best: int) -> PerPoint:
    """The loss of evenly spread settings to the best single target, plus one standard error."""
    rows, losses = np.flatnonzero(trial.compared), np.full(len(lam), np.nan)
    best_label = trial.correct[rows, best]
    conversations = trial.conversations
    groups = None if conversations is None else [conversations[row] for row in rows]
    for place in np.unique(np.linspace(0, len(lam) - 1, _MOST).astype(np.int64)):
        label = trial.correct[rows, trial.path.at(float(lam[place]))[rows]]
        mean, error = paired_mean(best_label - label, groups)
        losses[place] = mean + error
    return losses


def paired_mean(
    differences: Float[NDArray[np.float64], " query"], groups: Sequence[str] | None = None
) -> tuple[float, float]:
    """The mean of paired differences, and its standard error.

    The error is that of the groups' sums with two groups of the mean size added to them, one whose
    differences are all +1 and one whose are all -1. So it isn't zero where all differences are
    equal, as on few queries that all go to the best target.

    Args:
        differences: One per query.
        groups: The group of each; those of a group, such as a prompt, may depend on each other. If
            not given, each query is a group.
    """
    count, mean = len(differences), float(differences.mean())
    errors: Float[NDArray[np.float64], " group"] = differences - mean
    if groups is not None:
        place = np.unique(np.array(groups), return_inverse=True)[1]
        errors = np.bincount(place, errors).astype(np.float64)
    number = len(errors)
    total = float((errors**2).sum()) + 2 * (count / number) ** 2
    return mean, float(np.sqrt(total * number / (number + 1)) / count)
