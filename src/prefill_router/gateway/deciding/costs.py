"""What answering a request would cost each target's way."""

import math
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.cost import CostEstimator, CostScale
from prefill_router.gateway.deciding.question import Question
from prefill_router.policy import score

PerTarget = Float[NDArray[np.float64], " target"]
_BYTES_PER_TOKEN = 4
_MILLION = 1e6


def request_tokens(question: Question, read: int | None) -> int:
    """Estimated input tokens of the whole request, in the encoder's own tokens.

    Args:
        question: The request.
        read: What the encoder read; its tokens per byte are taken for the rest too. None where it
            read nothing: then a token is 4 bytes.
    """
    if read is None or not question.scored_bytes:
        return max(read or 0, -(-question.text_bytes // _BYTES_PER_TOKEN))
    return math.ceil(read * max(1.0, question.text_bytes / question.scored_bytes))


class Scoring:
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
class Costs(Scoring):
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
        self, question: Question, tokens: int, *, expected: PerTarget | None = None
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
