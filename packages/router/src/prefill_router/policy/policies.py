"""Policies: from predicted correctness and cost to a target, before any target is called.

`Lambda` is the paper's, Equation 2, and `Argmax` its limit: the most probable target whatever it
costs. `Tolerance` takes the cheapest target that is nearly as probably right as the best (NVIDIA's
LLM router blueprint, version 3). `Threshold` has a strong and a weak target: the strong one answers
queries that it is likely enough to win (RouteLLM, Ong et al., 2024). `Tiered` has two stages: first
it chooses the tier of targets that a query needs, then the target in that tier.

A policy's input is `Predictions`, made by a router or any other predictor. `OperatingPoints` are
the settings that were chosen for a router's policy.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.errors import ConfigError, DataError
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
from prefill_router.serialization import Kinds, Part
from prefill_router.short_repr import short_repr


@dataclass(frozen=True)
class Policy(Part, ABC):
    """A family of choices with one parameter, `at`, from 0 to 1.

    0 is the cheapest or weakest end, 1 the most accurate one. Its fields are its options in a
    recipe, besides its `kind`. Each query is decided independently of other rows.
    """

    noun: ClassVar[str] = "policy"

    @abstractmethod
    def path(
        self, correctness: PerCell, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> LambdaPath:
        """The winners of every query over the whole range of `at`, exactly.

        Args:
            correctness: Predicted probabilities, finite.
            cost: Estimated costs on the scale of Equation 2, finite.
            targets: The names of the columns; needed by policies that name targets.

        Raises:
            ConfigError: The shapes differ, a number isn't finite, or a named target is missing.
        """

    def choose(
        self, correctness: PerCell, cost: PerCell, at: float, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], " query"]:
        """The winning target of each query at one setting.

        Raises:
            ConfigError: As for `path`, or `at` is outside [0, 1].
        """
        return self.path(correctness, cost, targets=targets).at(at)

    def order(
        self, correctness: PerCell, cost: PerCell, at: float, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], "query target"]:
        """The winner of each query, then the others by Equation 2, as fallbacks.

        Raises:
            ConfigError: As for `choose`.
        """
        winner = self.choose(correctness, cost, at, targets=targets)[:, None]
        ranked = rank(correctness, cost, at)
        place = np.argsort(ranked != winner, axis=1, kind="stable")
        order: Int[NDArray[np.int64], "query target"] = np.take_along_axis(ranked, place, axis=1)
        return order

    def scores(
        self,
        correctness: PerCell,
        tokens: PerCell,  # noqa: ARG002
        *,
        targets: tuple[str, ...] = (),  # noqa: ARG002
    ) -> PerCell:
        """The scores of answers: the predictions, unless the policy scores answers itself.

        Args:
            correctness: Predicted probabilities.
            tokens: Output tokens of the answers; NaN where unknown.
            targets: The names of the columns.
        """
        return correctness

    def charge(
        self,
        observed: PerCell,
        cost: PerCell,  # noqa: ARG002
        *,
        targets: tuple[str, ...] = (),  # noqa: ARG002
    ) -> PerCell:
        """The cost of getting the answer of each target with this policy; by default its own cost.

        Args:
            observed: Observed cost of each target's answer, US dollars; NaN where unknown.
            cost: Estimated costs on the scale of Equation 2.
            targets: The names of the columns.
        """
        return observed

    def summary(self) -> dict[str, Any]:
        """A description for reports; the same as `to_dict`, unless that is long."""
        return self.to_dict()


POLICIES = Kinds[type[Policy]](
    "policy",
    "prefill_router.policy",
    {
        "lambda": "policies:Lambda",
        "argmax": "policies:Argmax",
        "tolerance": "policies:Tolerance",
        "threshold": "policies:Threshold",
        "tiered": "policies:Tiered",
        "cascade": "cascade:Cascade",
    },
    "prefill_router.policies",
    expects=type,
)
KINDS = POLICIES.names
"""The kinds of policies, those that other distributions add among them."""


def from_dict(value: Mapping[str, Any]) -> Policy:
    """The policy that `Policy.to_dict` describes.

    Raises:
        CorruptError: The kind is unknown, or an option is unknown or of the wrong type.
        ConfigError: The options contradict each other.
    """
    return POLICIES.of_saved(value).parse(value)


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
            probability that the strong one is right if exactly one of the two is (1/2 where that
            can't be); or `weak`, 1 - p_weak, which doesn't use the strong target's prediction.

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
            tier_of_target = np.full(cost.shape[1], -1, dtype=np.int64)
            for place, tier in enumerate(self.tiers):
                tier_of_target[columns(tier, targets, self.kind)] = place
            return np.tile(tier_of_target, (len(cost), 1))
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


@short_repr
@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Predictions:
    """Predicted correctness and estimated cost of every target on every query.

    Attributes:
        query_ids: Distinct ids, which join the rows to a dataset.
        targets: Distinct names, in the tables' column order.
        correctness: Probabilities of a correct answer.
        estimated_cost: US dollars, known before the answer.
        scale: Equation 1's range over the train rows, for Equation 2.

    Raises:
        DataError: Shapes differ, ids or names repeat, there are none, a probability is outside
            [0, 1], or a cost is negative or not finite.
    """

    query_ids: tuple[str, ...]
    targets: tuple[str, ...]
    correctness: PerCell
    estimated_cost: PerCell
    scale: CostScale

    def __post_init__(self) -> None:
        shape = (len(self.query_ids), len(self.targets))
        if 0 in shape:
            raise DataError(f"predictions have the shape {shape}; give at least one of each")
        for what, names in (("query ids", self.query_ids), ("targets", self.targets)):
            if len(set(names)) < len(names):
                raise DataError(f"{what} repeat in the predictions; keep one of each")
        for name in ("correctness", "estimated_cost"):
            got = getattr(self, name).shape
            if got != shape:
                raise DataError(f"{name} has the shape {got}; the ids and the targets need {shape}")
        if not ((self.correctness >= 0) & (self.correctness <= 1)).all():
            raise DataError("correctness must be probabilities in [0, 1]; check the predictor")
        if not ((self.estimated_cost >= 0) & np.isfinite(self.estimated_cost)).all():
            raise DataError("estimated_cost must be US dollars, finite, not negative; check prices")

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def normalised_cost(self) -> PerCell:
        """Estimated costs on the scale of the train rows."""
        return self.scale.normalise(self.estimated_cost)

    def select(
        self, ids: Iterable[str] | None = None, *, targets: Iterable[str] | None = None
    ) -> "Predictions":
        """The subset with these queries and targets, in the order given.

        Raises:
            DataError: Some have no predictions.
        """
        wanted = self.query_ids if ids is None else tuple(ids)
        names = self.targets if targets is None else tuple(targets)
        cells = np.ix_(
            _find_places(wanted, self.query_ids, "queries"),
            _find_places(names, self.targets, "targets"),
        )
        return replace(
            self,
            query_ids=wanted,
            targets=names,
            correctness=self.correctness[cells],
            estimated_cost=self.estimated_cost[cells],
        )


def _find_places(wanted: tuple[str, ...], names: tuple[str, ...], what: str) -> list[int]:
    place = {name: i for i, name in enumerate(names)}
    lacking = [name for name in wanted if name not in place]
    if lacking:
        raise DataError(
            f"the predictions lack {len(lacking)} of {len(wanted)} {what}, the first is "
            f"{lacking[0]!r}; predict them too, or leave them out"
        )
    return [place[name] for name in wanted]


@short_repr
@final
@dataclass(frozen=True)
class OperatingPoints:
    """The settings that were chosen on train rows, out of fold.

    Attributes:
        accurate: The lam of the highest accuracy; the cheapest one if there are several.
        thrifty: The lam of the lowest cost at no less accuracy than the best single target. None
            where no setting is both as accurate and cheaper, or no cost is known.
        setting: The lam that the router is used at, by `rule`.
        best: The best single target.
        level: The lam of the lowest cost that loses less than a point of accuracy to the best
            single target, one standard error included; `accurate` where there is none.
        budgets: For shares of the best single target's mean cost, the highest lam that stays within
            it; None where there is none.
        cheapest: The same for the mean cost of the cheapest target.
        rule: How the setting was chosen, in words.
    """

    accurate: float
    thrifty: float | None
    setting: float
    best: str
    level: float | None = None
    budgets: tuple[tuple[float, float | None], ...] = ()
    cheapest: float | None = None
    rule: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
