"""The systems of an end-to-end comparison: routers with their encoders' cost, and single targets.

A router's encoder costs its prefill, charged by the token or by the hour of the machine. It is paid
for every query at every setting, so each operating point moves by the same cost, and P-AUCCC may
change. There are two ways to compute it then:

`charged`
    The anchors stay the single targets' mean costs, since using a single target needs no encoder.
    This is what a user pays.
`translated`
    The anchors move by the same amount, as in the paper, which translates the whole curve. With
    linear cost this changes nothing; with inverse cost it changes P-AUCCC slightly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import (
    Anchors,
    Axis,
    PerResample,
    Points,
    Scorer,
    Trial,
    Weights,
    divide,
    known_mean,
    mean_over,
    padded_area,
    single_points,
)
from prefill_router.progress import Progress
from prefill_router.router import Router, cached_states, finished_store
from prefill_router.studies.end_to_end.latency import Latency

PerQuery = Float[NDArray[np.float64], " query"]
_MILLION = 1e6
_HOUR = 3600.0


@final
@dataclass(frozen=True, kw_only=True)
class Charge:
    """The price of encoding, in one of two units.

    Attributes:
        per_million_tokens: US dollars per million tokens that the encoders read.
        per_hour: US dollars per hour of the routing machine, which a decision occupies for the mean
            latency.
    """

    per_million_tokens: float | None = None
    per_hour: float | None = None

    def __post_init__(self) -> None:
        given = [p for p in (self.per_million_tokens, self.per_hour) if p is not None]
        if len(given) != 1 or not (np.isfinite(given[0]) and given[0] >= 0):
            raise ConfigError(
                "the encoder needs one price, 0 or more: US dollars per million input tokens, or "
                "US dollars per hour of the machine that it runs on"
            )

    @property
    def said(self) -> str:
        """The price in words."""
        if self.per_hour is not None:
            return f"${self.per_hour:g} per hour of routing, one request at a time"
        return f"${self.per_million_tokens:g} per million input tokens"

    def dollars(self, tokens: PerQuery, latency: Latency | None) -> PerQuery:
        """The cost of encoding each query, US dollars.

        Args:
            tokens: Number of tokens that the encoders read of each query.
            latency: Latency of a decision.

        Raises:
            ConfigError: It is charged by the hour and the latency isn't known.
        """
        if self.per_million_tokens is not None:
            return tokens * self.per_million_tokens / _MILLION
        if latency is None:
            raise ConfigError("an encoder that is charged by the hour needs a routing latency")
        return np.full(len(tokens), latency.mean * (self.per_hour or 0.0) / _HOUR)


def tokens_read(
    router: Router,
    dataset: RoutingDataset,
    *,
    stores: Sequence[Activations] = (),
    cache: Path,
    progress: Progress,
) -> PerQuery:
    """The number of tokens that all encoders of the router read of each query.

    Truncated prompts count with the tokens that are read. Features of the text alone count as 0.

    Args:
        router: The router with the encoders.
        dataset: The queries.
        stores: Existing states.
        cache: Keeps the states that are missing and encoded now.
        progress: Reports the progress of the encoding.
    """
    total = np.zeros(len(dataset))
    for source in router.features.sources:
        sites = router.features.sites_of(source.provenance)
        held = finished_store(
            stores, source.provenance, sites, source.rounding, dataset.prompt_keys
        ) or cached_states(
            dataset,
            router.encoder(source.provenance),
            cache,
            sites=sites,
            rounding=source.rounding,
            progress=progress,
        )
        total += np.minimum(held.tokens(dataset.prompt_keys), source.provenance.max_tokens)
    return total


PerCell = Float[NDArray[np.float64], "query target"]


@final
@dataclass(frozen=True, eq=False)
class Contender:
    """A router with the cost of its encoders and the duration of decisions and answers.

    Attributes:
        name: Its name in tables.
        trial: Its predictions, labels and observed costs.
        answer_seconds: Duration of each target's answer, from the request to its end; NaN where
            unknown.
        encoder_cost: Cost of encoding each query, US dollars.
        latency: Latency of a decision; None where unknown.
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

    def at(self, lam: float) -> "ContenderUse":
        """The outcome of using the router at one setting."""
        choice = self.trial.path.at(lam)
        # A policy that calls several targets in turn pays for all of them and waits for each.
        waited = self.trial.policy.charge(
            self.answer_seconds, self.trial.cost, targets=self.trial.targets
        )
        return ContenderUse(
            self.trial.of_choice(self.trial.correct, choice),
            self.trial.of_choice(self.trial.paid, choice),
            self.encoder_cost,
            self.trial.of_choice(waited, choice),
            _shares(choice, len(self.trial.targets)),
        )

    def always(self, target: str) -> "ContenderUse":
        """The outcome of using one target alone, without routing."""
        k = self.trial.targets.index(target)
        choice = np.full(len(self.trial), k, dtype=np.int64)
        return ContenderUse(
            self.trial.correct[:, k],
            self.trial.observed_cost[:, k],
            np.zeros(len(self.trial)),
            self.answer_seconds[:, k],
            _shares(choice, len(self.trial.targets)),
        )


@final
@dataclass(frozen=True, eq=False)
class ContenderUse:
    """The outcome of each query when a system is used at one setting; NaN where unknown.

    Attributes:
        label: Label of the answer.
        target_cost: Cost of the targets, US dollars.
        encoder_cost: Cost of encoding, US dollars.
        answer_seconds: Duration of the targets' answers, seconds.
        shares: The share of queries that each target answers.
    """

    label: PerQuery
    target_cost: PerQuery
    encoder_cost: PerQuery
    answer_seconds: PerQuery
    shares: Float[NDArray[np.float64], " target"]

    def numbers(self, weights: Weights, routing: PerResample) -> dict[str, PerResample]:
        """The metrics in each resample, by name (`result.NUMBERS`); costs are per query.

        Args:
            weights: How often each query counts.
            routing: Mean latency of a decision, seconds; the same for every query.
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


AXES: tuple[Axis, ...] = ("inverse", "linear")


@final
@dataclass(frozen=True, eq=False)
class ChargedPlane:
    """A contender's curve, sorted once.

    Attributes:
        contender: The system.
        scorer: The scorer of its trial.
    """

    contender: Contender
    scorer: Scorer

    @classmethod
    def of(cls, contender: Contender) -> "ChargedPlane":
        """Sort a contender's trial."""
        return cls(contender, Scorer(contender.trial))

    def areas(self, weights: Weights) -> dict[str, PerResample]:
        """P-AUCCC in each resample, by variant and axis: `p_auccc`, `charged`, `translated`."""
        trial = self.contender.trial
        weights = weights * trial.compared
        points = self.scorer.read(weights).rising
        singles = single_points(
            known_mean(weights, trial.single_label), known_mean(weights, trial.single_cost)
        )
        anchors = Anchors.of(singles.cost, singles.accuracy, mean_over(weights, trial.best_label))
        extra = mean_over(weights, self.contender.encoder_cost)
        dearer = replace(points, cost=points.cost + extra[:, None])
        moved = replace(
            anchors, cost_low=anchors.cost_low + extra, cost_high=anchors.cost_high + extra
        )
        found = {}
        for axis in AXES:
            end = "" if axis == "inverse" else "_linear"
            found[f"p_auccc{end}"] = _area(points, anchors, axis)
            found[f"charged{end}"] = _area(dearer, anchors, axis)
            found[f"translated{end}"] = _area(dearer, moved, axis)
        return found


def _area(points: Points, anchors: Anchors, axis: Axis) -> PerResample:
    return padded_area(anchors.cheapness(points.cost, axis=axis), anchors.height(points.accuracy))
