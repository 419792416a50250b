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
        correctness: Every target's predicted probability; None without a forecast.
        novelty: As in `Forecast`.
        fallback: Why there is no forecast, or why it isn't trusted; None where nothing is wrong.
    """

    tokens: int
    cost: PerTarget
    correctness: PerTarget | None = None
    novelty: float | None = None
    fallback: FallbackReason | None = None

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
        return Known(tokens=tokens, cost=costs.estimate(question, tokens), fallback=forecast)
    tokens = request_tokens(question, forecast.tokens)
    cost = costs.estimate(question, tokens)
    p = forecast.correctness
    if p.shape != (targets,) or not np.isfinite(p).all():  # that of another router, or none at all
        return Known(tokens=tokens, cost=cost, fallback="encoder_down")
    strange = novelty < 1 and forecast.novelty is not None and forecast.novelty > novelty
    return Known(
        tokens=tokens,
        cost=cost,
        correctness=p,
        novelty=forecast.novelty,
        fallback="novel" if strange else None,
    )
