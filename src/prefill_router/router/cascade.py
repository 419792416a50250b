"""The plan of a router's cascade for one request: which targets it calls, and when it stops."""

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
        target: The target's name.
        threshold: The score from which its answer is taken; None for the last, which always is.
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
    """The plan of a cascade for one request, before any target is called.

    Attributes:
        policy: The cascade.
        lam: Its setting.
        stages: The targets, in the order of the calls.
        input_tokens: The length of the prompt in the encoder's tokens, before truncation.
        truncated: Whether the prompt was too long for the encoder and was truncated.
    """

    policy: Cascade
    lam: float
    stages: tuple[CascadeStage, ...]
    input_tokens: int
    truncated: bool

    def score(self, target: str, output_tokens: int | None) -> float:
        """The score of a target's answer; without a scorer its predicted probability.

        Args:
            target: The target's name.
            output_tokens: The length of the answer; None where unknown.
        """
        predicted = next(s.correctness for s in self.stages if s.target == target)
        tokens = np.nan if output_tokens is None else float(output_tokens)
        table = self.policy.scores(np.array([[predicted]]), np.array([[tokens]]), targets=(target,))
        return float(table[0, 0])

    def run(
        self, ask: Callable[[str], Answer], output_tokens: Callable[[Answer], int | None]
    ) -> CascadeRun[Answer]:
        """Call one target after the other until an answer is good enough.

        Args:
            ask: Calls a target and returns its answer.
            output_tokens: The length of an answer; None where unknown.

        Raises:
            UpstreamError: All calls failed; it is the error of the last one.
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
    """Plan the cascade of a router for one request.

    Args:
        router: A router whose policy is a cascade.
        request: Text, or chat messages.
        lam: The cascade's setting, from 0 (the first answer) to 1 (the most accurate).

    Raises:
        ConfigError: The policy isn't a cascade, or `lam` is outside [0, 1].
        PromptError: The request can't be encoded.
    """
    policy = router.policy
    if not isinstance(policy, Cascade):
        raise ConfigError(f"the router's policy is {policy.kind}, not a cascade; use router.route")
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
