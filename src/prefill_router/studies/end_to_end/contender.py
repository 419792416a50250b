"""Who is compared from end to end: routers, what their encoders cost, and always the same target.

A router's own encoder costs its prefill, by the token or by the machine's hour. It is paid for
every query at every setting, so the router's mean cost moves each operating point by the same
amount, and P-AUCCC may change. Two readings of the plane are possible then:

`charged`
    The anchors stay the single targets' mean costs, since nobody who asks one target alone pays for
    an encoder. This is what a user's bill says.
`translated`
    The anchors move by the same amount, as where the paper translates the whole curve. With linear
    cost this changes nothing at all; with inverse cost it changes a little.
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
    """What encoding is charged at; one of both.

    Attributes:
        per_million_tokens: US dollars per million tokens that the encoders read.
        per_hour: US dollars per hour of the machine that routes, of which a decision takes its
            mean latency.
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
        """What each query's encoding costs.

        Args:
            tokens: What the encoders read of each query.
            latency: Of a decision.

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
    """How many tokens the router's encoders read of each query, all together.

    Prompts that an encoder cuts count as long as what it reads. Features of the text alone read
    nothing.

    Args:
        router: Whose encoders.
        dataset: The queries.
        stores: States that are there.
        cache: Keeps the states that aren't and are made now.
        progress: Shows how far the encoding is.
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

    def at(self, lam: float) -> "ContenderUse":
        """What using it at one setting gives."""
        choice = self.trial.path.at(lam)
        # A policy that asks several targets pays for them and waits for them, one after the other.
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
        """What asking one target alone gives, without any routing."""
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


AXES: tuple[Axis, ...] = ("inverse", "linear")


@final
@dataclass(frozen=True, eq=False)
class ChargedPlane:
    """A contender's curve, sorted once.

    Attributes:
        contender: Whose.
        scorer: Its trial, sorted.
    """

    contender: Contender
    scorer: Scorer

    @classmethod
    def of(cls, contender: Contender) -> "ChargedPlane":
        """Sort a contender's trial."""
        return cls(contender, Scorer(contender.trial))

    def areas(self, weights: Weights) -> dict[str, PerResample]:
        """P-AUCCC in each resample, by reading and axis: `p_auccc`, `charged`, `translated`."""
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
