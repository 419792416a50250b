"""Draws which answers to a sampled request are labelled: at what chance, and what that costs.

They are drawn at random, more often where a label would teach about the choice. What a label of a
target could teach is its expected gain over the choice that was made: the mean of max(0, s - best),
where s is the target's score (lam * p - (1 - lam) * cost) under what isn't known about p, and best
the highest score of the others. Per dollar of asking and judging, and above a floor for all, it
sets the probability of each answer to be labelled. These probabilities are scaled so that the
expected spending is what may be spent.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.endpoints import Reply, bound, cost_of, estimate_usage
from prefill_router.options import Share, check_options
from prefill_router.targets import Pool, Target
from prefill_router_gateway import Receipt
from prefill_router_gateway.learning.judging import AnswerJudges
from prefill_router_gateway.receipts import RepeatedRequest, SideQuestions

Cells = Float[NDArray[np.float64], "request target"]
PerTarget = Float[NDArray[np.float64], " target"]
LABELS_BEHIND: Final = 20.0
"""A predicted probability is taken to be as uncertain as the mean of so many labels."""
FLOOR: Final = 0.2
"""The share of spending that goes to answers at random."""
_LEAST_WORTH = 1e-12
"""What teaches less per dollar, relative to the most, is labelled at random alone."""


def expected_gain(correctness: PerTarget, cost: PerTarget, lam: float) -> PerTarget:
    """What a label of each target could improve the choice of one request by, in its score.

    Args:
        correctness: Predicted probabilities of a correct answer.
        cost: Estimated costs, US dollars; they are taken relative to the most expensive.
        lam: The weight of correctness.
    """
    highest = float(cost.max())
    score = lam * correctness - (1 - lam) * (cost / highest if highest > 0 else cost)
    spread = lam * np.sqrt((correctness * (1 - correctness) + 0.05) / (LABELS_BEHIND + 1))
    gains = np.empty(len(score))
    for k in range(len(score)):
        best = max((float(s) for j, s in enumerate(score) if j != k), default=float(score[k]))
        away = abs(float(score[k]) - best)  # a leader may turn out worse, another one better
        gains[k] = _normal_gain(-away, float(spread[k]))
    return gains


def _normal_gain(distance: float, spread: float) -> float:
    """The mean of max(0, x) for a normal x of this mean and standard deviation."""
    if spread <= 0:
        return max(0.0, distance)
    z = distance / spread
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    gain = spread * density + distance * math.erfc(-z / math.sqrt(2)) / 2
    return max(0.0, gain)  # far below 0 the difference of two tiny numbers rounds to either side


def propensities(gain: Cells, price: Cells, dollars: float) -> Cells:
    """The probability with which each answer is to be labelled.

    Args:
        gain: What its label could teach; NaN where there was no forecast, which counts as the mean.
        price: Expected US dollars of asking and judging; NaN where it can't be asked.
        dollars: What may be spent on all of them.

    Returns:
        Probabilities, 0 where it can't be asked; their expected spending is at most `dollars`.
    """
    askable = ~np.isnan(price)
    cost = np.where(askable, np.maximum(price, 1e-9), 0.0)
    total = float(cost.sum())
    if float(np.nansum(price)) <= dollars:
        return askable.astype(np.float64)
    floor = FLOOR * dollars / total
    has_gain = askable & ~np.isnan(gain)
    worth = np.where(has_gain, np.nan_to_num(gain) / np.where(askable, cost, 1.0), 0.0)
    if not worth.any():  # they can't be distinguished
        has_gain, worth = askable, askable.astype(np.float64)
    worth = np.where(askable & ~has_gain, worth[has_gain].mean(), worth) / worth.max()
    teaches = worth > _LEAST_WORTH
    scale = _find_scale(worth[teaches], cost[teaches], floor, dollars - floor * total)
    return np.where(askable, np.minimum(1.0, floor + scale * worth), 0.0)


def _find_scale(
    worth: NDArray[np.float64], cost: NDArray[np.float64], floor: float, dollars: float
) -> float:
    """The s with which the sum of cost * (min(1, floor + s * worth) - floor) is `dollars`.

    Those of most worth have a probability of 1 before others; behind the k first of these the sum
    is linear in s. If all of them at 1 cost less than `dollars`, it's the s where all have just 1.
    """
    order = np.argsort(-worth, kind="stable")
    worth, cost = worth[order], cost[order]
    certain = np.cumsum(cost * (1 - floor))
    before = np.concatenate(([0.0], certain[:-1]))
    slope = np.cumsum((cost * worth)[::-1])[::-1]
    scales = np.append((dollars - before) / slope, np.inf)
    k = int(np.argmax(np.append(scales[:-1] * worth <= 1 - floor, True)))
    return min(float(scales[k]), (1 - floor) / float(worth[-1]))


def chance(seed: int, decision: str, target: str) -> float:
    """A number in [0, 1) that is drawn for each decision and target, and always the same."""
    digest = hashlib.sha256(f"{seed}\n{decision}\n{target}".encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest()[:7]) / 2**56


_LEAST_RATIO = 0.1
RoutedRequest = tuple[RepeatedRequest, Receipt]


@final
@dataclass(frozen=True, kw_only=True)
class LabellingSettings:
    """How labels are made.

    Attributes:
        again: The share of judged answers that are judged twice, to measure the judge.
        seed: Seeds the draw of what is asked.

    Raises:
        ConfigError: The share isn't in [0, 1].
    """

    again: Share = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self)


@final
class SidePlan:
    """What to ask of which request.

    Args:
        pool: The targets.
        judges: The judges, whose calls cost too.
        settings: How labels are made.

    Attributes:
        ratio: What labels have cost, relative to what was expected of them.
    """

    def __init__(self, pool: Pool, judges: AnswerJudges, settings: LabellingSettings) -> None:
        self._pool, self._judges, self._settings = pool, judges, settings
        self.ratio = 1.0
        self._expected = 0.0

    def correct(self, spent: float) -> None:
        """Learn from what all that was drawn so far has cost, in US dollars."""
        if self._expected > 0 and spent > 0:
            self.ratio = min(max(spent / self._expected, _LEAST_RATIO), 1.0)

    def draw(
        self, new: Sequence[RoutedRequest], dollars: float, *, at: float
    ) -> list[SideQuestions]:
        """Draw the answers to label, of each request; the same requests give the same draw.

        Nothing is drawn, for any, where no dollars are left for what costs some.

        Args:
            new: Requests that nothing was drawn for yet, with their receipts.
            dollars: What may be spent on them.
            at: The time, in seconds since 1970.
        """
        if not new:
            return []
        gain = np.array([self._expected_gains(receipt) for _, receipt in new])
        price = np.array(
            [[self._price_label(*request, t, dollars) for t in self._pool] for request in new]
        )
        chances = propensities(gain, price * self.ratio, dollars)
        if not chances.any():
            return []
        self._expected += float(np.nansum(chances * price))
        return [
            self._draw_request(request, row, at)
            for request, row in zip(new, chances.tolist(), strict=True)
        ]

    def _draw_request(self, request: RoutedRequest, row: list[float], at: float) -> SideQuestions:
        name, client_target = request[0].sample.id, str(request[1].outcome.target)
        chances, seed = dict(zip(self._pool.names, row, strict=True)), self._settings.seed
        targets = [target for target in chances if chance(seed, name, target) < chances[target]]
        if self._judges.form == "pairs":  # the client's answer is judged beside any other
            others = [p for target, p in chances.items() if target != client_target]
            chances[client_target] = 1 - float(np.prod([1 - p for p in others]))
            if set(targets) - {client_target}:
                targets = [t for t in chances if t == client_target or t in targets]
            else:
                targets = []
        return SideQuestions(id=name, at=at, propensity=chances, drawn=targets)

    def _expected_gains(self, receipt: Receipt) -> list[float]:
        """What a label of each target would teach; NaN without a forecast."""
        choice, names = receipt.choice, self._pool.names
        if not all(n in choice.correctness and n in choice.estimated_cost for n in names):
            return [np.nan] * len(names)
        correctness = np.array([choice.correctness[name] for name in names])
        cost = np.array([choice.estimated_cost[name] for name in names])
        lam = 0.5 if choice.lam is None else choice.lam
        gains: list[float] = expected_gain(correctness, cost, lam).tolist()
        return gains

    def _price_label(
        self, request: RepeatedRequest, receipt: Receipt, target: Target, dollars: float
    ) -> float:
        """The expected US dollars of a label; NaN where the target can't be asked."""
        answer = request.sample.answer
        judging = self._judges.price(request, target, answer) * (1 + self._settings.again)
        if target.name == receipt.outcome.target:
            return judging
        if request.sample.is_turn:
            return float("nan")
        most = bound(request.options_for(target), request.prompt).dollars
        usage = estimate_usage(request.prompt, Reply(text=answer))
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        too_long = target.context_tokens is not None and tokens > target.context_tokens
        if most is None or most > dollars or too_long:
            return float("nan")
        return judging + (cost_of(usage, target) or 0.0)
