"""Who is compared from end to end: routers, and always the same target."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import DataError
from prefill_router.evaluation import Trial
from prefill_router.evaluation.weighted import PerResample, Weights, divide, known_mean
from prefill_router.studies.end_to_end.latency import Latency

PerCell = Float[NDArray[np.float64], "query target"]
PerQuery = Float[NDArray[np.float64], " query"]


@final
@dataclass(frozen=True, eq=False)
class Contender:
    """A router with what it takes besides the targets' answers.

    Attributes:
        name: What tables call it.
        trial: Its predictions beside what happened.
        answer_seconds: How long each target's answer takes, from the request to its end; NaN where
            unknown.
        encoder_cost: What encoding each query costs, US dollars.
        latency: Of a decision; None where unknown.
    """

    name: str
    trial: Trial
    answer_seconds: PerCell
    encoder_cost: PerQuery
    latency: Latency | None

    def __post_init__(self) -> None:
        shape = self.trial.correct.shape
        if self.answer_seconds.shape != shape or self.encoder_cost.shape != shape[:1]:
            raise DataError(
                f"{self.name}: answers' seconds have the shape {self.answer_seconds.shape} and "
                f"encoder costs {self.encoder_cost.shape}; the trial has {shape}"
            )

    def at(self, lam: float) -> "Use":
        """What using it at one setting gives."""
        choice = self.trial.path.at(lam)
        # A policy that asks several targets pays for them and waits for them, one after the other.
        waited = self.trial.policy.charge(
            self.answer_seconds, self.trial.cost, targets=self.trial.targets
        )
        return Use(
            self.trial.of_choice(self.trial.correct, choice),
            self.trial.of_choice(self.trial.paid, choice),
            self.encoder_cost,
            self.trial.of_choice(waited, choice),
            _shares(choice, len(self.trial.targets)),
        )

    def always(self, target: str) -> "Use":
        """What asking one target alone gives, without any routing."""
        k = self.trial.targets.index(target)
        choice = np.full(len(self.trial), k, dtype=np.int64)
        return Use(
            self.trial.correct[:, k],
            self.trial.observed_cost[:, k],
            np.zeros(len(self.trial)),
            self.answer_seconds[:, k],
            _shares(choice, len(self.trial.targets)),
        )


@final
@dataclass(frozen=True, eq=False)
class Use:
    """What becomes of each query in one use; NaN where unknown.

    Attributes:
        label: Of the answer.
        target_cost: Paid to the targets, US dollars.
        encoder_cost: Paid for encoding, US dollars.
        answer_seconds: Waited for the targets.
        shares: The share of queries that each target answers.
    """

    label: PerQuery
    target_cost: PerQuery
    encoder_cost: PerQuery
    answer_seconds: PerQuery
    shares: Float[NDArray[np.float64], " target"]

    def numbers(self, weights: Weights, routing: PerResample) -> dict[str, PerResample]:
        """Its numbers in each resample, by name (`result.NUMBERS`); costs are per query.

        Args:
            weights: How often each query counts.
            routing: What a decision takes on average, seconds; the same for every query.
        """
        columns = (self.label, self.target_cost, self.encoder_cost, self.answer_seconds)
        accuracy, target, encoder, answer = known_mean(weights, np.stack(columns, axis=1)).T
        total = target + encoder
        return {
            "accuracy": accuracy,
            "target_cost": target,
            "encoder_cost": encoder,
            "total_cost": total,
            "encoder_share": divide(encoder, total),
            "answer_seconds": answer,
            "routing_seconds": routing,
            "total_seconds": answer + routing,
            "routing_share": divide(routing, answer + routing),
        }


def _shares(choice: Int[NDArray[np.int64], " query"], targets: int) -> NDArray[np.float64]:
    return np.bincount(choice, minlength=targets) / len(choice)
