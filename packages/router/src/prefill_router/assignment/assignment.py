"""The assignment with the highest expected accuracy within a budget and within limits.

Without limits the path over lam gives the relaxed optimum at once (`cut_path`); what is left of the
budget is spent on single upgrades. With limits, prices make the limited targets less attractive
(`limit_prices`), and the few prompts that still exceed a limit are moved. The relaxed optimum is a
bound on every assignment, so the distance to it is known: less than one upgrade without limits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.assignment.cut_path import ROUNDING, cut_path
from prefill_router.assignment.least_cost import MOST_CELLS, cheapest_choice
from prefill_router.assignment.limit_prices import PerTarget, find_prices
from prefill_router.assignment.moves import (
    Choice,
    Counts,
    Moves,
    PerCell,
    Rate,
    best_moves,
    first_within,
)
from prefill_router.errors import ConfigError
from prefill_router.money import list_price
from prefill_router.policy import Predictions
from prefill_router.progress import Progress
from prefill_router.short_repr import short_repr


@short_repr
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Assignment:
    """The target of each prompt, and how good that is expected to be.

    Attributes:
        query_ids: The prompts, in order.
        targets: The names of the targets.
        choice: The column of each prompt's target.
        correctness: The predicted probability of a correct answer of each prompt's target.
        cost: The estimated cost of each answer, US dollars.
        budget: US dollars for all prompts together.
        limits: The most prompts of each limited target.
        bound: Expected right answers that no assignment within budget and limits exceeds.
        lam: The lam of Equation 2 at which the budget ends; 1 where it pays for every step.
        prices: What a prompt at each target counts less because of its limit, in right answers.
    """

    query_ids: tuple[str, ...]
    targets: tuple[str, ...]
    choice: Int[NDArray[np.int64], " prompt"]
    correctness: Float[NDArray[np.float64], " prompt"]
    cost: Float[NDArray[np.float64], " prompt"]
    budget: float
    limits: Mapping[str, int]
    bound: float
    lam: float
    prices: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def expected_right(self) -> float:
        """The expected number of right answers."""
        return float(self.correctness.sum())

    @property
    def expected_cost(self) -> float:
        """The estimated cost of all answers, US dollars."""
        return float(self.cost.sum())

    @property
    def gap(self) -> float:
        """How many more right answers, at most, can be expected of any other assignment."""
        return max(0.0, self.bound - self.expected_right)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many prompts each target gets."""
        counts = np.bincount(self.choice, minlength=len(self.targets))
        return dict(zip(self.targets, counts.tolist(), strict=True))


def assign(
    predictions: Predictions,
    *,
    budget: float,
    limits: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Assignment:
    """Assign each prompt to a target.

    Args:
        predictions: Of every target for every prompt, such as those of `predict_prompts`.
        budget: US dollars for all prompts together, at the predictions' estimated costs.
        limits: The most prompts of a target, by name; others take any number.
        progress: Shows how far the prices of limited targets are.

    Raises:
        ConfigError: The budget is negative, infinite, or below the least possible cost. The limits
            leave some prompts without a target, or a limit is negative or of an unknown target.
            With limits and more than 10,000 prompts times targets, the least cost is approximate,
            and a budget just above the true one may be refused.
    """
    if not 0 <= budget < math.inf:
        raise ConfigError(f"the budget is {budget}; give a finite number of US dollars, 0 or more")
    problem = _Problem(predictions, budget, _check_limits(predictions, limits or {}))
    choice, bound, lam, prices = problem.solve(progress)
    rows = np.arange(len(predictions))
    return Assignment(
        query_ids=predictions.query_ids,
        targets=predictions.targets,
        choice=choice,
        correctness=predictions.correctness[rows, choice],
        cost=predictions.estimated_cost[rows, choice],
        budget=budget,
        limits=dict(limits or {}),
        bound=bound,
        lam=lam,
        prices={n: p for n, p in zip(predictions.targets, prices.tolist(), strict=True) if p},
    )


def _check_limits(predictions: Predictions, limits: Mapping[str, int]) -> Counts:
    """The most prompts of each target."""
    unknown = sorted(set(limits) - set(predictions.targets))
    if unknown:
        raise ConfigError(f"limits name {unknown}; the targets are {list(predictions.targets)}")
    if any(count < 0 for count in limits.values()):
        raise ConfigError(f"the limits are {dict(limits)}; each must be 0 prompts or more")
    count = len(predictions)
    most = np.array([min(limits.get(name, count), count) for name in predictions.targets])
    if most.sum() < count:
        raise ConfigError(
            f"the limits leave room for {most.sum():,} of {count:,} prompts; raise a limit, or "
            "leave out that of one target"
        )
    return most.astype(np.int64)


_TINY = float(np.finfo(np.float64).tiny)
_MOST_PRICE = 1e12
"""Right answers for a dollar, where the budget is all that counts."""


@final
class _Problem:
    """What is to be assigned: probabilities, costs, budget and limits."""

    def __init__(self, predictions: Predictions, budget: float, limits: Counts) -> None:
        self._value, self._cost = predictions.correctness, predictions.estimated_cost
        self._budget, self._limits = budget, limits
        span = predictions.scale.high - predictions.scale.low
        self._unit = span if span > _TINY else 1.0

    def solve(self, progress: Progress | None) -> tuple[Choice, float, float, PerTarget]:
        """The choice, the bound, lam, and the prices of limited targets."""
        prices = np.zeros(self._value.shape[1])
        cut = cut_path(self._value, self._cost, self._budget, unit=self._unit)
        if cut is not None and (self._room(cut.choice) >= 0).all():
            return self._spend(cut.choice), cut.bound, cut.lam, prices
        cheapest = self._cheapest(progress)
        if cut is None or self._left(cheapest) < 0:
            raise self._budget_error(cheapest)
        prices = self._find_prices(progress)
        priced_cut = cut_path(self._value - prices, self._cost, self._budget, unit=self._unit)
        cut = priced_cut or cut  # the cheapest targets are within the budget whatever the prices
        choice = self._within_budget(self._within_limits(cut.choice, cut.lam))
        affordable = [option for option in (choice, cheapest) if self._left(option) >= 0]
        best = max(map(self._spend, affordable), key=self._right)
        return best, cut.bound + float(prices @ self._limits), cut.lam, prices

    def _find_prices(self, progress: Progress | None) -> PerTarget:
        unit = self._spread()
        return find_prices(
            self._value,
            self._cost / unit,
            self._limits,
            budget=self._budget / unit,
            progress=progress,
        )

    def _spread(self) -> float:
        """The mean difference in dollars between the most and the least expensive target."""
        return float(np.ptp(self._cost, axis=1).mean()) or 1.0

    def _room(self, choice: Choice) -> Counts:
        """How many more prompts each target takes; negative where it has too many."""
        return self._limits - np.bincount(choice, minlength=len(self._limits))

    def _left(self, choice: Choice) -> float:
        """The dollars that are left of the budget."""
        return self._budget * (1 + ROUNDING) - self._dollars(choice)

    def _dollars(self, choice: Choice) -> float:
        return float(self._cost[np.arange(len(choice)), choice].sum())

    def _right(self, choice: Choice) -> float:
        return float(self._value[np.arange(len(choice)), choice].sum())

    def _within_limits(self, choice: Choice, lam: float) -> Choice:
        """Move prompts from targets that have too many, where that loses the least at this lam."""
        dollar = min((1 - lam) / max(lam, _TINY) / self._unit, _MOST_PRICE)

        def rate(gain: PerCell, extra: PerCell) -> PerCell:
            return gain - dollar * extra

        choice = choice.copy()
        while (room := self._room(choice)).min() < 0:
            rows = np.flatnonzero(room[choice] < 0)
            moves = best_moves(rows, choice, self._value, self._cost, rate, room=room)
            moves = moves.only(first_within(choice[moves.row], -room))
            self._apply_moves(choice, moves.only(first_within(moves.target, room)))
        return choice

    def _within_budget(self, choice: Choice) -> Choice:
        """Move prompts to cheaper targets, where that loses the least for each dollar saved."""
        most = self._budget * (1 + ROUNDING)
        return self._save(choice, lambda gain, saving: gain / saving, most=most)

    def _save(self, choice: Choice, merit: Rate, *, most: float) -> Choice:
        """Move prompts to cheaper targets with room until all cost so much, or none can save more.

        Args:
            choice: The target of each prompt.
            merit: How moves rate, from their gains and the dollars that they save.
            most: US dollars.
        """

        def rate(gain: PerCell, extra: PerCell) -> PerCell:
            is_cheaper = extra < 0
            return np.where(is_cheaper, merit(gain, np.where(is_cheaper, -extra, 1)), -np.inf)

        choice, rows = choice.copy(), np.arange(len(choice))
        while (over := self._dollars(choice) - most) > 0:
            room = self._room(choice)
            moves = best_moves(rows, choice, self._value, self._cost, rate, room=room)
            moves = moves.only(first_within(moves.target, room))
            if not len(moves):
                break
            saved = np.cumsum(-moves.extra)
            self._apply_moves(choice, moves.upto(int(np.searchsorted(saved, over)) + 1))
        return choice

    def _cheapest(self, progress: Progress | None) -> Choice:
        """The cheapest assignment that can be found within the limits.

        A small table is solved exactly if the one by prices is above the budget.
        """
        choice: Choice = np.lexsort((-self._value, self._cost), axis=1)[:, 0]
        if (self._room(choice) >= 0).all():
            return choice
        worth = -self._cost / self._spread()
        prices = find_prices(worth, worth, self._limits, budget=None, progress=progress)
        choice = self._within_limits((worth - prices).argmax(axis=1), 0.0)
        choice = self._save(choice, lambda gain, saving: saving, most=0.0)  # noqa: ARG005
        if self._left(choice) < 0 and self._cost.size <= MOST_CELLS:
            choice = cheapest_choice(self._cost / self._spread(), self._limits)
        return choice

    def _spend(self, choice: Choice) -> Choice:
        """Spend what is left of the budget on upgrades, the most efficient first."""
        choice, rows = choice.copy(), np.arange(len(choice))
        while (left := self._left(choice)) >= 0:

            def rate(gain: PerCell, extra: PerCell, left: float = left) -> PerCell:
                fits = (gain > 0) & (extra <= left)
                return np.where(fits, gain / np.maximum(extra, _TINY), -np.inf)

            room = self._room(choice)
            moves = best_moves(rows, choice, self._value, self._cost, rate, room=room)
            moves = moves.only(first_within(moves.target, room))
            dollars = np.cumsum(np.maximum(moves.extra, 0))
            moves = moves.upto(int(np.searchsorted(dollars, left, side="right")))
            if not len(moves):
                break
            self._apply_moves(choice, moves)
        return choice

    @staticmethod
    def _apply_moves(choice: Choice, moves: Moves) -> None:
        choice[moves.row] = moves.target

    def _budget_error(self, cheapest: Choice) -> ConfigError:
        dollars = self._dollars(cheapest)
        is_exact = self._cost.size <= MOST_CELLS or dollars <= self._cost.min(axis=1).sum()
        return ConfigError(
            f"the budget is {list_price(self._budget)}; the cheapest assignment costs "
            f"{'' if is_exact else 'about '}{list_price(_round_up(dollars))}; "
            "raise the budget to that at least, or leave out prompts"
        )


def _round_up(dollars: float) -> float:
    """An amount with six significant digits that is enough."""
    step = 10.0 ** (math.floor(math.log10(dollars)) - 5)
    return math.ceil(dollars / step) * step
