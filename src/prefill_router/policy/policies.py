"""The policies that choose before any target is called.

`Lambda` is the paper's, Equation 2, and `Argmax` its limit: the most probable target whatever it
costs. `Tolerance` takes the cheapest target that is nearly as probably right as the best (NVIDIA's
LLM router blueprint, version 3). `Threshold` has a strong and a weak target: the strong one answers
queries that it is likely enough to win (RouteLLM, Ong et al., 2024). `Tiered` has two stages: first
it chooses the tier of targets that a query needs, then the target in that tier.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy.base import Policy
from prefill_router.policy.path import (
    LambdaPath,
    PerCell,
    by_cost,
    check_tables,
    columns,
    lambda_path,
    rank,
    record_path,
    to_the_end,
)


@final
@dataclass(frozen=True)
class Lambda(Policy):
    """The best score of Equation 2; `at` is lam."""

    kind: ClassVar[str] = "lambda"

    def path(
        self,
        correctness: PerCell,
        cost: PerCell,
        *,
        targets: tuple[str, ...] = (),  # noqa: ARG002
    ) -> LambdaPath:
        """The winners of every query over lam, exactly.

        Raises:
            ConfigError: The shapes differ, or a number isn't finite.
        """
        return lambda_path(correctness, cost)


@final
@dataclass(frozen=True)
class Argmax(Policy):
    """The most probable target, whatever it costs; the same at every `at`."""

    kind: ClassVar[str] = "argmax"

    def path(
        self,
        correctness: PerCell,
        cost: PerCell,
        *,
        targets: tuple[str, ...] = (),  # noqa: ARG002
    ) -> LambdaPath:
        """One segment for each query.

        Raises:
            ConfigError: The shapes differ, or a number isn't finite.
        """
        winner = rank(correctness, cost, 1.0)[:, 0]
        return LambdaPath(np.arange(len(winner) + 1), np.zeros(len(winner)), winner)


@final
@dataclass(frozen=True)
class Tolerance(Policy):
    """The cheapest target whose probability is at most `1 - at` below the highest.

    At 0 every target qualifies, so the cheapest answers; at 1 only the most probable ones do.
    """

    kind: ClassVar[str] = "tolerance"

    def path(
        self,
        correctness: PerCell,
        cost: PerCell,
        *,
        targets: tuple[str, ...] = (),  # noqa: ARG002
    ) -> LambdaPath:
        """The winners of every query over 1 - tolerance, exactly.

        Raises:
            ConfigError: The shapes differ, or a number isn't finite.
        """
        check_tables(correctness, cost)
        short = np.clip(correctness.max(axis=1, keepdims=True) - correctness, 0, 1)
        order = by_cost(correctness, cost)
        # The best ones are valid beyond 1, so that none that is worse by a rounding wins at 1.
        holds_to = np.where(short == 0, np.inf, 1 - short)
        return record_path(order, np.take_along_axis(holds_to, order, axis=1))


WinScore = Literal["difference", "odds", "weak"]


@final
@dataclass(frozen=True, kw_only=True)
class Threshold(Policy):
    """The strong target where its win score is at least `1 - at`, else the weak one.

    At 0 the weak target answers everything, at 1 the strong one does. Other targets never answer,
    and cost isn't used.

    Attributes:
        strong: The name of the strong target.
        weak: The name of the weak one.
        score: How the win score is computed: `difference`, (1 + p_strong - p_weak) / 2; `odds`, the
            probability that the strong one is right if exactly one of the two is, 1/2 where neither
            or both certainly are; or `weak`, 1 - p_weak, which doesn't use the strong target's
            prediction.

    Raises:
        ConfigError: Both are the same target.
    """

    kind: ClassVar[str] = "threshold"
    strong: str
    weak: str
    score: WinScore = "difference"

    def __post_init__(self) -> None:
        if self.strong == self.weak:
            raise ConfigError(f"strong and weak are both {self.strong!r}; name two targets")

    def win_score(
        self, correctness: PerCell, *, targets: tuple[str, ...]
    ) -> Float[NDArray[np.float64], " query"]:
        """The win score of the strong target on each query, in [0, 1].

        Raises:
            ConfigError: One of the two targets is missing.
        """
        strong, weak = columns((self.strong, self.weak), targets, self.kind)
        p_strong, p_weak = correctness[:, strong], correctness[:, weak]
        if self.score == "odds":
            wins, loses = p_strong * (1 - p_weak), p_weak * (1 - p_strong)
            either = wins + loses
            return np.where(either > 0, wins / np.where(either > 0, either, 1), 0.5)
        return 1 - p_weak if self.score == "weak" else (1 + p_strong - p_weak) / 2

    def path(
        self, correctness: PerCell, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> LambdaPath:
        """The winners of every query over 1 - threshold, exactly.

        Raises:
            ConfigError: The shapes differ, a number isn't finite, or one of the two targets is
                missing.
        """
        check_tables(correctness, cost)
        score = np.clip(self.win_score(correctness, targets=targets), 0, 1)
        weak_to = np.maximum(np.nextafter(1 - score, -1), 0)
        pair = np.array(columns((self.weak, self.strong), targets, self.kind), dtype=np.int64)
        holds_to = np.stack([weak_to, np.full(len(score), np.inf)], axis=1)
        return record_path(np.tile(pair, (len(score), 1)), holds_to)


@final
@dataclass(frozen=True, kw_only=True)
class Tiered(Policy):
    """The most probable target of the cheapest tier in which one is probable enough.

    Probable enough is a probability of at least `at`. Where no tier has such a target, the most
    probable target of all answers. So at 1 it always does, and at 0 the cheapest tier answers.

    Attributes:
        tiers: The names of each tier's targets, the cheapest tier first; targets in none never
            answer. Empty: each query's targets are divided into `count` tiers by its own estimated
            costs, as evenly as possible, with any extra targets in the cheaper tiers.
        count: The number of tiers if `tiers` is empty.

    Raises:
        ConfigError: A target is in two tiers, a tier is empty, or there are fewer than 2 tiers.
    """

    kind: ClassVar[str] = "tiered"
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

    def tier_of(
        self, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], "query target"]:
        """The tier of every target on every query, 0 the cheapest; -1 where it is in none.

        Raises:
            ConfigError: A named target is missing.
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
        """The winners of every query over the required probability, exactly.

        Raises:
            ConfigError: The shapes differ, a number isn't finite, or a named target is missing.
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
        # The cheapest tier with targets comes first; an empty one, whose best is -1, is skipped,
        # since it is never the best so far and every query has some target.
        first = np.argmax(chances >= 0, axis=1)
        order = (first[:, None] + np.arange(chances.shape[1])) % chances.shape[1]
        holds_to = np.take_along_axis(chances, order, axis=1)
        winner = np.take_along_axis(np.stack(winners, axis=1), order, axis=1)
        return record_path(winner, to_the_end(holds_to))
