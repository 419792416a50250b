"""Draws which answers to a sampled request are labelled: at what chance, and what that costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.client import Reply, bound, cost_of, estimated_usage
from prefill_router.errors import ConfigError
from prefill_router.gateway import Receipt
from prefill_router.gateway.receipts import RepeatedRequest, SideQuestions
from prefill_router.learning.judging import AnswerJudges
from prefill_router.learning.question_choice import chance, expected_gain, propensities
from prefill_router.targets import Pool, Target

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

    again: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.again <= 1:
            raise ConfigError(f"the share that is judged again is {self.again}; give 0 to 1")


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
        gain = np.array([self._gain(receipt) for _, receipt in new])
        price = np.array([[self._price(*one, t, dollars) for t in self._pool] for one in new])
        chances = propensities(gain, price * self.ratio, dollars)
        if not chances.any():
            return []
        self._expected += float(np.nansum(chances * price))
        return [self._drawn(one, row, at) for one, row in zip(new, chances.tolist(), strict=True)]

    def _drawn(self, one: RoutedRequest, row: list[float], at: float) -> SideQuestions:
        name, mine = one[0].sample.id, str(one[1].outcome.target)
        told, seed = dict(zip(self._pool.names, row, strict=True)), self._settings.seed
        drawn = [target for target in told if chance(seed, name, target) < told[target]]
        if self._judges.form == "pairs":  # the client's answer is judged beside any other
            others = [p for target, p in told.items() if target != mine]
            told[mine] = 1 - float(np.prod([1 - p for p in others]))
            drawn = [t for t in told if t == mine or t in drawn] if set(drawn) - {mine} else []
        return SideQuestions(id=name, at=at, propensity=told, drawn=drawn)

    def _gain(self, receipt: Receipt) -> list[float]:
        """What a label of each target would teach; NaN without a forecast."""
        choice, names = receipt.choice, self._pool.names
        if not all(n in choice.correctness and n in choice.estimated_cost for n in names):
            return [np.nan] * len(names)
        correctness = np.array([choice.correctness[name] for name in names])
        cost = np.array([choice.estimated_cost[name] for name in names])
        lam = 0.5 if choice.lam is None else choice.lam
        found: list[float] = expected_gain(correctness, cost, lam).tolist()
        return found

    def _price(
        self, request: RepeatedRequest, receipt: Receipt, target: Target, dollars: float
    ) -> float:
        """The expected US dollars of a label; NaN where the target can't be asked."""
        answer = request.sample.answer
        judging = self._judges.price(request, target, answer) * (1 + self._settings.again)
        if target.name == receipt.outcome.target:
            return judging
        most = bound(request.options_for(target), request.prompt).dollars
        usage = estimated_usage(request.prompt, Reply(text=answer))
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        too_long = target.context_tokens is not None and tokens > target.context_tokens
        if most is None or most > dollars or too_long:
            return float("nan")
        return judging + (cost_of(usage, target) or 0.0)
