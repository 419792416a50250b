"""Adam and AdamW."""

import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.predictors.networks.layers import ParameterBuffer

_MEAN, _SQUARE, _LEAST = 0.9, 0.999, 1e-8
_BLOCK = 1 << 15  # numbers at once; what is remembered of them stays in the cache


@final
class Adam:
    """Adam's steps (Kingma and Ba, 2015) on all parameters at once, in place.

    The moments are kept divided by 1 - beta, which saves two operations a step.

    Args:
        parameters: The parameters, which change.
        gradients: Their gradients.
        learning_rate: The learning rate.
        weight_decay: Adam's, as an L2 penalty of all parameters; or AdamW's, of weights alone.
        decoupled: Whether the decay is AdamW's (Loshchilov and Hutter, 2019).
    """

    def __init__(
        self,
        parameters: ParameterBuffer,
        gradients: ParameterBuffer,
        *,
        learning_rate: float,
        weight_decay: float,
        decoupled: bool,
    ) -> None:
        self._rate, self._steps = learning_rate, 0
        vectors = parameters.vector, gradients.vector
        moments = np.zeros_like(vectors[0]), np.zeros_like(vectors[0])
        self._blocks: list[tuple[float, tuple[NDArray[Any], ...]]] = []
        decayed = parameters.weights if decoupled else 0
        for start in (*range(0, decayed, _BLOCK), *range(decayed, vectors[0].size, _BLOCK)):
            stop = start + _BLOCK if start >= decayed else min(start + _BLOCK, decayed)
            shrink = 1 - learning_rate * weight_decay if start < decayed else 1.0
            each = tuple(values[start:stop] for values in (*vectors, *moments))
            self._blocks.append((shrink, each))
        self._penalty = 0.0 if decoupled else weight_decay
        self._spare = np.empty_like(vectors[0][:_BLOCK])

    def step(self) -> None:
        """Change the parameters by their gradients."""
        self._steps += 1
        spread = math.sqrt((1 - _SQUARE) / (1 - _SQUARE**self._steps))
        rate = self._rate * (1 - _MEAN) / (1 - _MEAN**self._steps) / spread
        for shrink, (parameter, gradient, mean, square) in self._blocks:
            spare = self._spare[: len(parameter)]
            if self._penalty:
                gradient += np.multiply(parameter, self._penalty, out=spare)
            mean *= _MEAN
            mean += gradient
            square *= _SQUARE
            square += np.multiply(gradient, gradient, out=spare)
            np.sqrt(square, out=spare)
            spare += _LEAST / spread
            np.divide(mean, spare, out=spare)
            spare *= rate
            if shrink != 1:
                parameter *= shrink
            parameter -= spare
