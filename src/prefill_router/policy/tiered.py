"""Two stages: first how dear a tier of targets the query needs, then who of the tier answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy.base import Policy, names, options
from prefill_router.policy.equation import PerCell, check_tables
from prefill_router.policy.path import LambdaPath
from prefill_router.policy.steps import columns, record_path, to_the_end


@final
@dataclass(frozen=True, kw_only=True)
class Tiered(Policy):
    """The most probable target of the cheapest tier in which one is probable enough.

    Probable enough is a probability of at least `at`. Where no tier has such a target, the most
    probable one of all answers; so at 1 it always does, and at 0 the cheapest tier answers.

    Attributes:
        tiers: The names of each tier's targets, the cheapest tier first; targets in none never
            answer. Empty: each query's targets are cut into `count` tiers by its own estimated
            costs, as even as they go, the cheaper ones getting what is left over.
        count: How many tiers there are without names.

    Raises:
        ConfigError: A target is in two tiers, a tier is empty, or there are fewer than 2 tiers.
    """

    tiers: tuple[tuple[str, ...], ...] = ()
    count: int = 2

    def __post_init__(self) -> None:
        everyone = [name for tier in self.tiers for name in tier]
        if len(set(everyone)) < len(everyone):
            raise ConfigError("a target is in two tiers; put each into one")
        if self.tiers and (len(self.tiers) < 2 or not all(self.tiers)):
            raise ConfigError("name at least two tiers, and at least one target in each")
        if self.count < 2:
            raise ConfigError(f"{self.count} tiers; there must be at least 2")

    @property
    def kind(self) -> Literal["tiered"]:
        """`tiered`."""
        return "tiered"

    def tier_of(
        self, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], "query target"]:
        """The tier of every target on every query, 0 the cheapest; -1 where it is in none.

        Raises:
            ConfigError: A named target isn't there.
        """
        if self.tiers:
            one = np.full(cost.shape[1], -1, dtype=np.int64)
            for place, tier in enumerate(self.tiers):
                one[columns(tier, targets, self.kind)] = place
            return np.tile(one, (len(cost), 1))
        # Targets of equal cost are in the same tier, whatever their columns.
        cheaper = (cost[:, None, :] < cost[:, :, None]).sum(axis=2)
        tier_of: NDArray[np.int64] = cheaper * self.count // cost.shape[1]
        return tier_of

    def path(
        self, correctness: PerCell, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> LambdaPath:
        """The winners of every query over the probability asked for, exactly.

        Raises:
            ConfigError: The shapes differ, a number isn't finite, or a named target isn't there.
        """
        check_tables(correctness, cost)
        tier = self.tier_of(cost, targets=targets)
        winners, best = [], []
        for place in range(len(self.tiers) or self.count):
            p = np.where(tier == place, np.clip(correctness, 0, 1), -1.0)
            winner = np.lexsort((cost, -p), axis=1)[:, 0]
            winners.append(winner)
            best.append(p[np.arange(len(p)), winner])
        chances = np.stack(best, axis=1)
        # The cheapest tier that has targets comes first; an empty one, whose best is -1, is passed
        # over, since it can't be a record and every query has some target.
        first = np.argmax(chances >= 0, axis=1)
        order = (first[:, None] + np.arange(chances.shape[1])) % chances.shape[1]
        holds_to = np.take_along_axis(chances, order, axis=1)
        winner = np.take_along_axis(np.stack(winners, axis=1), order, axis=1)
        return record_path(winner, to_the_end(holds_to))

    def to_dict(self) -> dict[str, Any]:
        """The kind and the options."""
        return {
            "kind": self.kind,
            "tiers": [list(tier) for tier in self.tiers],
            "count": self.count,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Tiered":
        """The policy of `to_dict`.

        Raises:
            CorruptError: An option is unknown or of the wrong type.
            ConfigError: The tiers contradict each other.
        """
        given = options(value, {"tiers": list, "count": int})
        tiers = tuple(names(tier, "a tier") for tier in given.get("tiers", []))
        return cls(tiers=tiers, count=given.get("count", 2))
