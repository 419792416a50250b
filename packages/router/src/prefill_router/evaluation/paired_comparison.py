"""Paired comparison of many systems on the same queries and the same resamples."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import (
    Bootstrap,
    Estimate,
    Estimates,
    Weights,
    bootstrap_note,
    count_groups,
    estimates,
    estimates_to_dict,
    ones,
    plain,
)
from prefill_router.evaluation.fixed_mix import Axis
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.quality_checks import QualityCheck
from prefill_router.evaluation.reliability import with_chance
from prefill_router.evaluation.scores import Scorer, Scores
from prefill_router.policy import Lambda, OperatingPoints, Policy, Predictions
from prefill_router.progress import Progress
from prefill_router.short_repr import short_repr

Table = Mapping[tuple[str, str], NDArray[np.float64]]


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Paired:
    """The headline metrics of many systems, and their differences to one of them.

    Attributes:
        reference: The system that the others are compared with.
        headline: Metrics by system, then by name.
        difference: Each other system minus the reference, by system and name, with the interval of
            the paired differences.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the resamples.
        conversations: How many conversations the resamples draw from; None where they draw from
            queries.
    """

    reference: str
    headline: Mapping[str, Estimates]
    difference: Mapping[str, Estimates]
    resamples: int
    seed: int
    conversations: int | None = None

    def significant(self, system: str, name: str) -> bool:
        """Whether the interval of a system's difference excludes zero."""
        return self.difference[system][name].is_significant

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "reference": self.reference,
            "systems": {
                name: estimates_to_dict(numbers) for name, numbers in self.headline.items()
            },
            "differences": {
                name: {
                    number: {**estimate.to_dict(), "significant": self.significant(name, number)}
                    for number, estimate in numbers.items()
                }
                for name, numbers in self.difference.items()
            },
            "bootstrap": bootstrap_note(self.resamples, self.seed, self.conversations),
        }


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Paired differences of two systems on the same queries, first minus second.

    Attributes:
        first: The first system's numbers, by name.
        second: The second's.
        difference: First minus second, with the interval of the paired differences.
    """

    first: Mapping[str, float]
    second: Mapping[str, float]
    difference: Estimates

    def significant(self, name: str) -> bool:
        """Whether the interval of a difference excludes zero."""
        return self.difference[name].is_significant

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            name: {
                "first": plain(self.first[name]),
                "second": plain(self.second[name]),
                "difference": estimate.to_dict(),
                "significant": self.significant(name),
            }
            for name, estimate in self.difference.items()
        }


def paired(
    systems: Mapping[str, tuple[Predictions, Policy]],
    dataset: RoutingDataset,
    *,
    reference: str | None = None,
    checks: Mapping[str, QualityCheck] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    step: float | None = None,
    axis: Axis = "inverse",
    max_cost: float | None = None,
    chosen: Mapping[str, OperatingPoints | None] | None = None,
    fees: Mapping[str, Mapping[str, float]] | None = None,
    progress: Progress | None = None,
) -> Paired:
    """The headline metrics of every system, on the same resamples of the same queries.

    Metrics that depend on what is compared (`aiq`, `pareto_dist`) take all systems into account.

    Args:
        systems: Predictions and policy by name; all of the same queries and targets, in any order.
        dataset: Labels and observed costs.
        reference: The system that the others are compared with; the first if not given.
        checks: The quality checks of cascades, by system.
        resamples: Bootstrap resamples; 0 for no intervals.
        seed: Random seed of the resampling.
        step: Step of the grid of lam on which the curves are read; the exact path if not given.
        axis: How cost is normalised.
        max_cost: Largest cost of AIQ, US dollars per query; that of any system if not given.
        chosen: The settings that were chosen on train rows, by system.
        fees: What the decision itself costs by query id, US dollars, by system.
        progress: Reports the progress of the bootstrap.

    Raises:
        DataError: The systems have different queries or targets, or the dataset lacks some of them.
        ConfigError: There is no system, the reference or a check names an unknown one, or an option
            is invalid.
    """
    reference = _choose_reference(systems, reference, checks or {})
    scorers = {
        name: Scorer(trial, step, axis, max_cost, (chosen or {}).get(name))
        for name, trial in _make_trials(systems, dataset, checks or {}, fees or {}).items()
    }
    trial = next(iter(scorers.values())).trial
    scores = _score_systems(scorers, ones(len(trial)))
    point = _list_headlines(scores)
    width = max(scorer.width for scorer in scorers.values())
    resampled = Bootstrap(len(trial), resamples, seed, width, trial.conversations).resample(
        lambda weights: _list_headlines(_score_systems(scorers, weights)),
        point,
        progress,
        "paired bootstrap",
    )
    why = {
        (name, number): scores[name].why_undefined(("headline", number, ""))
        for (name, number), value in point.items()
        if np.isnan(value[0])
    }
    numbers = estimates(point, resampled, why.__getitem__)
    differences = estimates(
        _subtract_reference(point, reference),
        _subtract_reference(resampled, reference),
        lambda key: why.get(key) or why.get((reference, key[1]), ""),
    )
    return Paired(
        reference=reference,
        headline={name: with_chance(_pick_system(numbers, name)) for name in scorers},
        difference={name: _pick_system(differences, name) for name in scorers if name != reference},
        resamples=resamples,
        seed=seed,
        conversations=count_groups(trial.conversations),
    )


def compare(
    first: Predictions,
    second: Predictions,
    dataset: RoutingDataset,
    *,
    policies: tuple[Policy, Policy] | None = None,
    checks: tuple[QualityCheck | None, QualityCheck | None] = (None, None),
    resamples: int = 1000,
    seed: int = 0,
    step: float | None = None,
    axis: Axis = "inverse",
    max_cost: float | None = None,
    chosen: tuple[OperatingPoints | None, OperatingPoints | None] = (None, None),
    progress: Progress | None = None,
) -> Comparison:
    """Paired differences of two systems: every resample uses the same queries for both.

    Args:
        first: One system.
        second: The other, on the same queries and targets, in any order.
        dataset: Labels and observed costs.
        policies: The policy of each; the paper's for both if not given.
        checks: The quality check of each, for cascades.
        resamples: Bootstrap resamples.
        seed: Random seed of the resampling.
        step: Step of the grid of lam on which the curves are read; the exact path if not given.
        axis: How cost is normalised.
        max_cost: Largest cost of AIQ, US dollars per query; that of both systems if not given.
        chosen: The settings of each that were chosen on train rows.
        progress: Reports the progress of the bootstrap.

    Raises:
        DataError: The systems were not run on the same queries and targets, or the dataset lacks
            some of them.
        ConfigError: An option is invalid.
    """
    first_policy, second_policy = policies or (Lambda(), Lambda())
    pair = paired(
        {"first": (first, first_policy), "second": (second, second_policy)},
        dataset,
        reference="second",
        checks={
            name: check
            for name, check in zip(("first", "second"), checks, strict=True)
            if check is not None
        },
        resamples=resamples,
        seed=seed,
        step=step,
        axis=axis,
        max_cost=max_cost,
        chosen=dict(zip(("first", "second"), chosen, strict=True)),
        progress=progress,
    )
    numbers = {
        system: {name: estimate.value for name, estimate in estimates.items()}
        for system, estimates in pair.headline.items()
    }
    return Comparison(
        first=numbers["first"], second=numbers["second"], difference=pair.difference["first"]
    )


def _choose_reference(
    systems: Mapping[str, tuple[Predictions, Policy]],
    reference: str | None,
    checks: Mapping[str, QualityCheck],
) -> str:
    if not systems:
        raise ConfigError("there is no system to compare; name at least one")
    unknown = sorted({*checks, *([reference] if reference is not None else [])} - set(systems))
    if unknown:
        raise ConfigError(f"there are no systems {unknown}; known are {list(systems)}")
    return next(iter(systems)) if reference is None else reference


def _make_trials(
    systems: Mapping[str, tuple[Predictions, Policy]],
    dataset: RoutingDataset,
    checks: Mapping[str, QualityCheck],
    fees: Mapping[str, Mapping[str, float]],
) -> dict[str, Trial]:
    first = next(iter(systems.values()))[0]
    trials = {}
    for name, (predictions, policy) in systems.items():
        aligned = predictions.select(first.query_ids, targets=first.targets)
        # The other direction: no system has more queries or targets than the first.
        first.select(predictions.query_ids, targets=predictions.targets)
        trials[name] = Trial.join(
            aligned, dataset, policy=policy, check=checks.get(name), fee=fees.get(name)
        )
    shared = np.all([trial.compared for trial in trials.values()], axis=0)
    return {
        name: trial if (trial.compared == shared).all() else replace(trial, shared=shared)
        for name, trial in trials.items()
    }


def _score_systems(scorers: Mapping[str, Scorer], weights: Weights) -> dict[str, Scores]:
    readings = {name: scorer.read(weights) for name, scorer in scorers.items()}
    among = tuple(readings.values())
    return {
        name: scorer.score(weights, reading=readings[name], among=among)
        for name, scorer in scorers.items()
    }


def _list_headlines(scores: Mapping[str, Scores]) -> Table:
    """The headline numbers by system and name."""
    return {
        (name, number): value
        for name, system_scores in scores.items()
        for number, value in system_scores.headline.items()
    }


def _subtract_reference(table: Table, reference: str) -> Table:
    """The numbers of every other system minus the reference's."""
    return {
        (name, number): value - table[reference, number]
        for (name, number), value in table.items()
        if name != reference
    }


def _pick_system(numbers: Mapping[tuple[str, str], Estimate], system: str) -> dict[str, Estimate]:
    return {number: estimate for (name, number), estimate in numbers.items() if name == system}
