"""Whom a router's cascade asks for one request, and what must be said to stop it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np

from prefill_router.errors import ConfigError
from prefill_router.policy import Cascade, CascadeRun
from prefill_router.router.decision import Request
from prefill_router.router.router import Router
from prefill_router.short_repr import short_repr

Answer = TypeVar("Answer")


@final
@dataclass(frozen=True)
class CascadeStage:
    """One target of a cascade.

    Attributes:
        target: Its name.
        threshold: The score at which its answer is taken; None for the last, whose always is.
        correctness: Its predicted probability of a correct answer.
        estimated_cost: US dollars.
    """

    target: str
    threshold: float | None
    correctness: float
    estimated_cost: float


@short_repr
@final
@dataclass(frozen=True)
class CascadePlan:
    """What a cascade does with one request, as far as it is known before anybody is asked.

    Attributes:
        policy: The cascade.
        lam: Its setting.
        stages: Whom it asks, in order.
        input_tokens: What the encoder read of the prompt, in its own tokens, before truncation.
        truncated: Whether the prompt was too long for the encoder and lost its middle.
    """

    policy: Cascade
    lam: float
    stages: tuple[CascadeStage, ...]
    input_tokens: int
    truncated: bool

    def score(self, target: str, output_tokens: int | None) -> float:
        """The score of a target's answer; without a scorer its prediction stands in.

        Args:
            target: Whose answer it is.
            output_tokens: How long it is; None where that isn't known.
        """
        predicted = next(s.correctness for s in self.stages if s.target == target)
        tokens = np.nan if output_tokens is None else float(output_tokens)
        table = self.policy.scores(np.array([[predicted]]), np.array([[tokens]]), targets=(target,))
        return float(table[0, 0])

    def run(
        self, ask: Callable[[str], Answer], output_tokens: Callable[[Answer], int | None]
    ) -> CascadeRun[Answer]:
        """Ask one target after the other until an answer is good enough.

        Args:
            ask: Gives a target's answer.
            output_tokens: How long an answer is; None where that isn't known.

        Raises:
            UpstreamError: No target gave an answer; the last one's.
        """
        return self.policy.run(
            ask,
            lambda target, answer: self.score(target, output_tokens(answer)),
            at=self.lam,
            targets=tuple(stage.target for stage in self.stages),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "policy": self.policy.kind,
            "lam": self.lam,
            "stages": [vars(stage) for stage in self.stages],
            "input_tokens": self.input_tokens,
            "truncated": self.truncated,
        }


def plan_cascade(router: Router, request: Request, *, lam: float = 0.5) -> CascadePlan:
    """What a router's cascade does with one request.

    Args:
        router: Its policy is a cascade.
        request: Text, or chat messages.
        lam: The cascade's setting, from 0, the first answer, to 1, its most accurate end.

    Raises:
        ConfigError: The policy is no cascade, or `lam` is outside [0, 1].
        PromptError: The request can't be encoded.
    """
    policy = router.policy
    if not isinstance(policy, Cascade):
        raise ConfigError(f"the router's policy is {policy.kind}, no cascade; use its route")
    forecast = router.forecast_many([request])[0]
    cost = router.estimated_cost([forecast])
    names = router.pool.names
    turns = policy.turns(router.costs.scale.normalise(cost), targets=names)[0].tolist()
    thresholds = (*policy.thresholds(lam, stages=len(turns)), None)
    stages = tuple(
        CascadeStage(names[k], threshold, float(forecast.correctness[k]), float(cost[0, k]))
        for k, threshold in zip(turns, thresholds, strict=True)
    )
    return CascadePlan(policy, lam, stages, forecast.tokens, forecast.truncated)
