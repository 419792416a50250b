"""What a router is compared with at equal cost: rules that never read a request.

`FixedChoice` mixes targets blindly. `RateChoice` knows what each target's answer to a request will
cost, as the router predicts it, and how often each target is right: on the whole (*price alone*),
or in each domain. What a router gains beyond price alone, it gains by what the request says.

Each rule has corners, from the cheapest to the most accurate, that were learned from train rows.
Between two corners lie mixes of both, so that a rule can spend any amount. `ReferenceTable` has the
labels and costs of these mixes on the judged rows. Rows that were judged by different rules, such
as those of the folds of a cross-validation, share a table. A level is the same fraction of the way
from the cheapest to the most accurate corner in each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.evaluation.bootstrap import known_mean, ones
from prefill_router.evaluation.chance_labels import Choice
from prefill_router.evaluation.fixed_mix import LEAST, FixedChoice, TrainLabels, envelope_targets
from prefill_router.evaluation.judged_predictions import PerQuery, Trial
from prefill_router.evaluation.quality_checks import PerCell
from prefill_router.policy import Lambda
from prefill_router.short_repr import short_repr

LEVELS = 65
"""How many mixes of a reference are measured, from its cheapest corner to its most accurate."""
_MOST_LEVELS = 3 * LEVELS
"""As many with the corners themselves, of all rules that share a table."""
_LAMS = 64
"""Values of lam among which the corners of a rule are found."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class RateChoice:
    """The choice of Equation 2 with accuracies of train rows in the place of probabilities.

    Attributes:
        groups: The domains that have accuracies of their own; every other query belongs to the last
            row of `rates`.
        rates: The targets' accuracies on train rows, [group, target].
        lams: The lam of each corner, rising.
        costs: The mean observed cost of each corner on train rows, US dollars; NaN where unknown.
    """

    groups: tuple[str, ...]
    rates: Float[NDArray[np.float64], "group target"]
    lams: tuple[float, ...]
    costs: tuple[float, ...]

    @classmethod
    def fit(cls, train: RoutingDataset, cost: PerCell, *, by_domain: bool = False) -> "RateChoice":
        """Learn the rates and the corners.

        Args:
            train: The train rows.
            cost: Their estimated costs on the scale of Equation 2.
            by_domain: Whether each domain with enough rows has rates of its own.
        """
        labels, domains = TrainLabels.of(train), np.array(train.domains, dtype=object)
        large = [name for name in sorted(set(train.domains)) if (domains == name).sum() >= LEAST]
        groups = tuple(large) if by_domain else ()
        parts = [*(domains == name for name in groups), slice(None)]
        rates = np.nan_to_num(np.stack([labels.singles(part)[1] for part in parts]))
        rule = cls(groups, rates, (1.0,), (np.nan,))
        return cls(groups, rates, *rule._find_corners(train, cost))

    def _find_corners(
        self, train: RoutingDataset, cost: PerCell
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The lam values on the concave envelope of accuracy over cost, and their costs."""
        rates = self._expand(train.domains)
        path = Lambda().path(rates, cost)
        changes = np.unique(path.lam)
        lams = np.append(np.quantile(changes, np.linspace(0, 1, _LAMS), method="nearest"), 1.0)
        rows = np.arange(len(rates))
        choices = [path.at(float(lam)) for lam in lams]
        prices = np.stack([train.observed_cost[rows, choice] for choice in choices], axis=1)
        costs = known_mean(ones(len(rates)), prices)[0]
        right = np.array([rates[rows, choice].mean() for choice in choices])
        corners = envelope_targets(costs, right) or [len(lams) - 1]
        return tuple(lams[corners].tolist()), tuple(costs[corners].tolist())

    def choose(self, trial: Trial) -> Iterator[Choice]:
        """The target of each query, at one corner after another."""
        path = Lambda().path(self._expand(trial.domains or ("",) * len(trial)), trial.cost)
        for lam in self.lams:
            yield path.at(lam)

    def _expand(self, domains: Sequence[str]) -> PerCell:
        place = {name: i for i, name in enumerate(self.groups)}
        rates: PerCell = self.rates[[place.get(name, len(self.groups)) for name in domains]]
        return rates

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        costs = [None if np.isnan(cost) else cost for cost in self.costs]
        rates = self.rates.tolist()
        return {"groups": list(self.groups), "rates": rates, "lams": self.lams, "costs": costs}

    @classmethod
    def from_dict(cls, value: Any) -> "RateChoice":
        """The rule of `to_dict`; KeyError, TypeError or ValueError where it isn't one."""
        costs = tuple(np.nan if cost is None else float(cost) for cost in value["costs"])
        rates = np.array(value["rates"], dtype=np.float64)
        return cls(tuple(value["groups"]), rates, tuple(map(float, value["lams"])), costs)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class References:
    """The rules that a router is compared with, learned from its train rows.

    Attributes:
        targets: The targets' names.
        mix: The best fixed mix of targets.
        price: Price alone.
        domains: The same with the accuracies of each domain; None where there is one domain.
    """

    targets: tuple[str, ...]
    mix: FixedChoice
    price: RateChoice
    domains: RateChoice | None

    @classmethod
    def fit(cls, train: RoutingDataset, cost: PerCell) -> "References":
        """Learn all of them; the arguments are those of `RateChoice.fit`."""
        several = len(set(train.domains)) > 1
        return cls(
            train.pool.names,
            FixedChoice.mix(train),
            RateChoice.fit(train, cost),
            RateChoice.fit(train, cost, by_domain=True) if several else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        domains = None if self.domains is None else self.domains.to_dict()
        return {
            "targets": list(self.targets),
            "mix": self.mix.to_dict(),
            "price": self.price.to_dict(),
            "domains": domains,
        }

    @classmethod
    def from_dict(cls, value: Any) -> "References":
        """The references of `to_dict`; KeyError, TypeError or ValueError where they aren't."""
        domains = value["domains"]
        return cls(
            tuple(value["targets"]),
            FixedChoice.from_dict(value["mix"]),
            RateChoice.from_dict(value["price"]),
            None if domains is None else RateChoice.from_dict(domains),
        )


Levels = Float[NDArray[np.float64], " level"]
PerLevel = Float[NDArray[np.float64], "query level"]


@runtime_checkable
class Rule(Protocol):
    """A rule with corners: `FixedChoice`, `RateChoice`, or another that knows no answers."""

    @property
    def costs(self) -> tuple[float, ...]:
        """The mean cost of each corner on train rows, rising; NaN where unknown."""

    def choose(self, trial: Trial) -> Iterator[Choice]:
        """The target of each query, at one corner after another."""


@final
@dataclass(frozen=True, eq=False)
class ReferenceTable:
    """Labels and costs of a reference on the judged rows, at each level.

    Attributes:
        label: Labels; NaN where one that the mix needs is missing.
        cost: Observed costs, US dollars.
    """

    label: PerLevel
    cost: PerLevel

    @classmethod
    def of(cls, rule: Rule, trial: Trial) -> "ReferenceTable":
        """Look up the labels and costs of the targets that the rule chooses."""
        return cls.of_parts([rule], [trial])

    @classmethod
    def of_parts(cls, rules: Sequence[Rule], trials: Sequence[Trial]) -> "ReferenceTable":
        """The rows of several parts, one after another, each by a rule of its own."""
        levels = _share_levels(rules)
        pairs = zip(rules, trials, strict=True)
        return cls.join([cls._look_up_part(rule, trial, levels) for rule, trial in pairs])

    @classmethod
    def of_choices(cls, choices: Iterable[Choice], trial: Trial) -> "ReferenceTable":
        """Look up the labels and costs of some choices of a target per row; each is a level."""
        rows, targets = np.arange(len(trial))[:, None], np.stack(list(choices), axis=1)
        return cls(trial.correct[rows, targets], trial.observed_cost[rows, targets])

    @classmethod
    def join(cls, tables: Sequence["ReferenceTable"]) -> "ReferenceTable":
        """The rows of several tables, one after another; they have the same levels."""
        label, cost = [table.label for table in tables], [table.cost for table in tables]
        return cls(np.concatenate(label), np.concatenate(cost))

    @classmethod
    def _look_up_part(cls, rule: Rule, trial: Trial, levels: Levels) -> "ReferenceTable":
        corners = cls.of_choices(rule.choose(trial), trial)
        before, share = _place_levels(np.array(rule.costs), levels)
        return cls(_mix(corners.label, before, share), _mix(corners.cost, before, share))

    @property
    def is_known(self) -> Bool[NDArray[np.bool_], " query"]:
        """The rows on which the outcomes of all levels are known."""
        rows = ~np.isnan(self.label).any(axis=1)
        if not np.isnan(self.cost).all():
            rows &= ~np.isnan(self.cost).any(axis=1)
        return np.asarray(rows, dtype=np.bool_)

    def spend(self, rows: Int[NDArray[np.int64], " row"], cost: float) -> "MixedReference":
        """The mix that spends this much on these rows, on average.

        Args:
            rows: The rows that are compared.
            cost: US dollars per query. Below the cheapest and above the most expensive level, that
                level counts; so does the most accurate one where the cost is unknown.
        """
        label, paid = self.label[rows], self.cost[rows]
        mean = paid.mean(axis=0)
        last = len(mean) - 1
        if np.isnan(cost) or np.isnan(mean).any():
            return MixedReference(label[:, last], np.full(len(rows), np.nan), 0.0)
        order = np.argsort(mean, kind="stable")
        place = int(np.searchsorted(mean[order], cost))
        if place in (0, last + 1):
            end = order[min(place, last)]
            return MixedReference(label[:, end], paid[:, end], 0.0)
        below, above = order[place - 1], order[place]
        gap = mean[above] - mean[below]
        share = (cost - mean[below]) / gap if gap > 0 else 1.0
        mixed = [(1 - share) * table[:, below] + share * table[:, above] for table in (label, paid)]
        slope = _find_slope(mean[order], label.mean(axis=0)[order], place)
        return MixedReference(mixed[0], mixed[1], slope)


@final
@dataclass(frozen=True, eq=False)
class MixedReference:
    """A reference at one mean cost.

    Attributes:
        label: The label of each row, in expectation over the mix.
        cost: The cost of each row, US dollars.
        slope: The accuracy that a dollar per query more would bring; 0 where it can't spend more.
    """

    label: PerQuery
    cost: PerQuery
    slope: float

    def differences(self, label: PerQuery, cost: PerQuery) -> PerQuery:
        """The differences of the rows of a system that spends as much on average.

        Their mean is the gain of the system over the reference. How much the gain varies with the
        cost of the sampled rows is part of the differences, by the reference's slope.

        Args:
            label: The system's labels.
            cost: Its costs, US dollars.
        """
        difference: PerQuery = label - self.label
        return difference - self.slope * (cost - self.cost) if self.slope else difference


_WINDOW = 6 / (LEVELS - 1)
"""The share of the costs on each side over which a slope is measured; nearer levels are alike."""


def _find_slope(cost: PerQuery, accuracy: PerQuery, place: int) -> float:
    reach = _WINDOW * float(cost[-1] - cost[0])
    below = int(np.searchsorted(cost, cost[place] - reach))
    above = int(np.searchsorted(cost, cost[place] + reach, side="right")) - 1
    run = float(cost[above] - cost[below])
    return float(accuracy[above] - accuracy[below]) / run if run > 0 else 0.0


def _share_levels(rules: Sequence[Rule]) -> Levels:
    """The fractions of the way that are measured: evenly spaced ones, and every rule's corners.

    A mix of two levels beside a corner would lie below the corner.
    """
    levels = [np.linspace(0, 1, LEVELS)]
    for rule in rules:
        costs = np.array(rule.costs)
        if len(costs) > 1 and costs[-1] > costs[0]:
            levels.append((costs - costs[0]) / (costs[-1] - costs[0]))
    shared = np.unique(np.concatenate(levels).clip(0, 1))
    if len(shared) > _MOST_LEVELS:
        shared = shared[np.linspace(0, len(shared) - 1, _MOST_LEVELS).round().astype(int)]
    return shared


def _place_levels(
    costs: Float[NDArray[np.float64], " corner"], levels: Levels
) -> tuple[Int[NDArray[np.int64], " level"], Float[NDArray[np.float64], " level"]]:
    """The corner before each level, and the share of the next one."""
    if len(costs) == 1 or np.isnan(costs).any():
        last = np.full(len(levels), len(costs) - 1)
        return last, np.zeros(len(levels))
    cost = costs[0] + levels * (costs[-1] - costs[0])
    before = np.clip(np.searchsorted(costs, cost, side="right") - 1, 0, len(costs) - 2)
    run = np.maximum(costs[before + 1] - costs[before], np.finfo(np.float64).tiny)
    return before, np.clip((cost - costs[before]) / run, 0, 1)


def _mix(
    table: Float[NDArray[np.float64], "query corner"],
    before: Int[NDArray[np.int64], " level"],
    share: Float[NDArray[np.float64], " level"],
) -> PerLevel:
    after = np.minimum(before + 1, table.shape[1] - 1)
    mixed = (1 - share) * table[:, before] + np.where(share > 0, share * table[:, after], 0)
    return np.where(share == 1, table[:, after], mixed)
