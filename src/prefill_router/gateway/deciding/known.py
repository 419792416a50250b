"""What is known of a request when its target is chosen."""

from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.gateway.deciding.costs import Costs, PerTarget, request_tokens
from prefill_router.gateway.deciding.question import Question
from prefill_router.gateway.words import FallbackReason
from prefill_router.router import Forecast


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """What is known of a request when its target is chosen.

    Attributes:
        tokens: Its estimated input tokens, in the encoder's own.
        cost: Every target's estimated cost with nothing cached, US dollars.
        high: What nine answers of ten don't cost more than; None where no forecast tells.
        correctness: Every target's predicted probability; None without a forecast.
        novelty: As in `Forecast`.
        fallback: Why there is no forecast, or why it isn't trusted; None where nothing is wrong.
    """

    tokens: int
    cost: PerTarget
    high: PerTarget | None = None
    correctness: PerTarget | None = None
    novelty: float | None = None
    fallback: FallbackReason | None = None

    @property
    def high_cost(self) -> PerTarget:
        """What they hardly cost more than, as far as it is known, US dollars."""
        return self.cost if self.high is None else self.high

    @property
    def trusted(self) -> PerTarget | None:
        """The probabilities, where they are to decide."""
        return self.correctness if self.fallback is None else None


def known_of(
    question: Question,
    forecast: Forecast | FallbackReason | None,
    *,
    costs: Costs,
    targets: int,
    novelty: float,
) -> Known:
    """What is known of a request.

    Args:
        question: The request.
        forecast: What the router expects, or why there is no forecast; None where none was asked.
        costs: The router's costs.
        targets: How many targets the router has.
        novelty: Forecasts of requests above this quantile of the train rows aren't trusted; 1 for
            none.
    """
    if not isinstance(forecast, Forecast):
        tokens = request_tokens(question, None)
        cost = costs.estimate(question, tokens)
        return Known(tokens=tokens, cost=cost, fallback=forecast)
    tokens = request_tokens(question, forecast.tokens)
    p = forecast.correctness
    if p.shape != (targets,) or not np.isfinite(p).all():  # that of another router, or none at all
        cost = costs.estimate(question, tokens)
        return Known(tokens=tokens, cost=cost, fallback="encoder_down")
    cost, high = (
        costs.estimate(question, tokens, expected=expected)
        for expected in (forecast.output, forecast.output_high)
    )
    strange = novelty < 1 and forecast.novelty is not None and forecast.novelty > novelty
    return Known(
        tokens=tokens,
        cost=cost,
        high=high,
        correctness=p,
        novelty=forecast.novelty,
        fallback="novel" if strange else None,
    )
