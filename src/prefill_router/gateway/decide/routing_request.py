"""What is known of a request when its target is chosen; never its text.

That is what it asks for, what answering it would cost at each target (Equation 1, and the score of
Equation 2), and the forecast, or why there is none.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.cost import CostEstimator, CostScale
from prefill_router.gateway.types import FallbackReason
from prefill_router.policy import score
from prefill_router.router import Forecast
from prefill_router.targets import Ability, Endpoint


@final
@dataclass(frozen=True, kw_only=True)
class RoutingRequest:
    """What deciding needs to know of a request.

    Attributes:
        endpoint: What is asked.
        at: When it came, seconds since 1970.
        text_bytes: Bytes of all its text, UTF-8.
        scored_bytes: Bytes of the part that the encoder reads.
        needs: What its target must be able to do.
        max_tokens: The most output tokens that the client allows; None for no limit.
        session: What names its conversation, `session_name`; None where nothing does.
        opening: Whether a conversation that is known by its first turns has no further ones yet.
            Others may begin alike, so it isn't held to their target.
        in_tool_loop: Whether it brings the results of tools that a target called.
        tool_call_ids: The calls whose results it brings.
        previous_response_id: The stored response that it goes on from.
        named: The target that the client named.
        lam_asked: The trade-off that the client asked for.
        max_cost: The most that it may cost, estimated, US dollars.
        allow: The targets that the client allows; None for all.
        exclude: The targets that the client rules out.
        key: The name of the client's key; None where none is asked for.
        key_targets: The targets that the key may use; None for all.
        to_call: Whether the target will be called, so that it needs an endpoint; False where the
            decision alone is asked for.
    """

    endpoint: Endpoint
    at: float
    text_bytes: int = 0
    scored_bytes: int = 0
    needs: frozenset[Ability] = frozenset()
    max_tokens: int | None = None
    session: str | None = None
    opening: bool = False
    in_tool_loop: bool = False
    tool_call_ids: tuple[str, ...] = ()
    previous_response_id: str | None = None
    named: str | None = None
    lam_asked: float | None = None
    max_cost: float | None = None
    allow: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    key: str | None = None
    key_targets: frozenset[str] | None = None
    to_call: bool = True


PerTarget = Float[NDArray[np.float64], " target"]
_BYTES_PER_TOKEN = 4
_MILLION = 1e6


def request_tokens(question: RoutingRequest, read: int | None) -> int:
    """Estimated input tokens of the whole request, in the encoder's own tokens.

    Args:
        question: The request.
        read: What the encoder read; its tokens per byte are taken for the rest too. None where it
            read nothing: then a token is 4 bytes.
    """
    if read is None or not question.scored_bytes:
        return max(read or 0, -(-question.text_bytes // _BYTES_PER_TOKEN))
    return math.ceil(read * max(1.0, question.text_bytes / question.scored_bytes))


class CostScores:
    """Costs that are known, with the provider's cache, and the score of Equation 2.

    Args:
        scale: Of Equation 2.
        saved: What a cached token saves at each target, US dollars.
        ratio: Every target's own tokens for each of the encoder's.
    """

    def __init__(self, scale: CostScale, *, saved: PerTarget, ratio: PerTarget) -> None:
        self._scale, self.saved, self.ratio = scale, saved, ratio

    def with_cache(self, cost: PerTarget, column: int, *, tokens: int, cached: int) -> PerTarget:
        """The same costs where one target has some of the request in its cache.

        Args:
            cost: With nothing cached, US dollars.
            column: Who has it.
            tokens: The request's, in the encoder's tokens.
            cached: How many it has, in its own tokens; the request has no more than all of its own.
        """
        own = tokens * float(self.ratio[column])
        less = cost.copy()
        less[column] -= min(float(cached), own) * self.saved[column]
        return less

    def normalise(self, cost: PerTarget) -> PerTarget:
        """Costs on the scale of the train rows."""
        return self._scale.normalise(cost)

    def scores(self, correctness: PerTarget, cost: PerTarget, lam: float) -> PerTarget:
        """Every target's score (Equation 2) at these costs, US dollars."""
        p, c = correctness[None, :], self._scale.normalise(cost)[None, :]
        scores: PerTarget = score(p, c, lam)[0]
        return scores


@final
class RequestCosts(CostScores):
    """What a router estimates of one request, besides."""

    def __init__(self, estimator: CostEstimator) -> None:
        recorded = set(estimator.recorded)
        saved = [
            0.0
            if t.input_price is None or t.cached_input_price is None or t.name in recorded
            else (t.input_price - t.cached_input_price) / _MILLION
            for t in estimator.pool
        ]
        super().__init__(estimator.scale, saved=np.array(saved), ratio=estimator.token_ratio)
        self._estimator = estimator
        self.known = not estimator.is_free

    def estimate(
        self, question: RoutingRequest, tokens: int, *, expected: PerTarget | None = None
    ) -> PerTarget:
        """Every target's estimated cost, US dollars, with nothing cached.

        An answer is expected to be as long as the forecast says, or without one as the target's
        median on the train rows; but no longer than the client's limit.

        Args:
            question: The request.
            tokens: Its input tokens, in the encoder's own.
            expected: What the forecast expects of each answer, on average or at most.
        """
        most = 0 if question.endpoint == "embeddings" else question.max_tokens
        counts = np.array([tokens], dtype=np.float64)
        written = None if expected is None else expected[None, :]
        cost: PerTarget = self._estimator.estimate(counts, most_output=most, expected=written)[0]
        return cost


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RequestEstimate:
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


def request_estimate(
    question: RoutingRequest,
    forecast: Forecast | FallbackReason | None,
    *,
    costs: RequestCosts,
    targets: int,
    novelty: float,
) -> RequestEstimate:
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
        return RequestEstimate(tokens=tokens, cost=cost, fallback=forecast)
    tokens = request_tokens(question, forecast.tokens)
    p = forecast.correctness
    if p.shape != (targets,) or not np.isfinite(p).all():  # that of another router, or none at all
        cost = costs.estimate(question, tokens)
        return RequestEstimate(tokens=tokens, cost=cost, fallback="encoder_down")
    cost, high = (
        costs.estimate(question, tokens, expected=expected)
        for expected in (forecast.output, forecast.output_high)
    )
    strange = novelty < 1 and forecast.novelty is not None and forecast.novelty > novelty
    return RequestEstimate(
        tokens=tokens,
        cost=cost,
        high=high,
        correctness=p,
        novelty=forecast.novelty,
        fallback="novel" if strange else None,
    )
