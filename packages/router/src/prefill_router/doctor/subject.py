"""The subject of a check-up, a router at one lam, and one finding about it.

The router is examined on queries that it was not fitted on. A finding is one line of text with the
numbers behind it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import DataError
from prefill_router.evaluation import (
    Estimate,
    JudgedPart,
    PerResample,
    Trial,
    Weights,
    chunks,
    interval,
    ones,
    worded,
)
from prefill_router.guarantee import best_single
from prefill_router.policy import check_lam
from prefill_router.short_repr import short_repr

Sign = Literal["good", "bad", "unclear", "note"]
SIGNS: Mapping[str, str] = {"good": "ok", "bad": "!!", "unclear": "??", "note": "--"}
"""How each sign is shown in a terminal."""


@final
@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Its key in `doctor.json`.
        title: Title of the check.
        sign: `good`, `bad`, `unclear` where there are too few queries to decide, `note` where it is
            for information only.
        result: The result in one line, with the number.
        numbers: Plain values for JSON.
    """

    name: str
    title: str
    sign: Sign
    result: str
    numbers: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "sign": self.sign,
            "said": self.result,
            "numbers": dict(self.numbers),
        }


def points_with_interval(estimate: Estimate) -> str:
    """A difference in percentage points, with its interval."""
    spread = interval(estimate, "points")
    return worded(estimate.value, "points") + (f" ({spread})" if spread else "")


def percent(value: float) -> str:
    """A share in percent."""
    return worded(value, "share")


PerQuery = Float[NDArray[np.float64], " query"]


@final
@short_repr
@dataclass(frozen=True, eq=False)
class Subject:
    """A router at one lam, with labels and observed costs.

    Attributes:
        trial: Its predictions, labels and costs, on queries that it was not fitted on.
        queries: The same queries, in the same order.
        train: Its train rows, on which the single targets and mixes that it is compared with are
            chosen.
        lam: The trade-off between accuracy and cost.
        parts: The same queries for the verdict, with what they are compared with.
    """

    trial: Trial
    queries: tuple[Query, ...]
    train: RoutingDataset
    lam: float
    parts: tuple[JudgedPart, ...]

    def __post_init__(self) -> None:
        check_lam(self.lam)
        if tuple(query.id for query in self.queries) != self.trial.query_ids:
            raise DataError("the queries aren't those of the trial in its order; select them by id")
        if self.train.pool.names != self.trial.targets:
            raise DataError(
                f"the train part has the targets {self.train.pool.names}, the router "
                f"{self.trial.targets}; select the router's"
            )
        if np.isnan(self.label).all():
            raise DataError("no chosen target's answer has a label; score more answers")

    def __len__(self) -> int:
        return len(self.trial)

    @cached_property
    def choice(self) -> Int[NDArray[np.int64], " query"]:
        """The chosen target of each query."""
        return self.trial.path.at(self.lam)

    @cached_property
    def label(self) -> PerQuery:
        """The chosen target's label; NaN where not measured."""
        return self.trial.of_choice(self.trial.correct, self.choice)

    @cached_property
    def cost(self) -> PerQuery:
        """The observed cost of the choice, US dollars; NaN where unknown."""
        return self.trial.of_choice(self.trial.paid, self.choice)

    @cached_property
    def confidence(self) -> PerQuery:
        """The chosen target's predicted probability."""
        return self.trial.of_choice(self.trial.correctness, self.choice)

    @cached_property
    def best(self) -> int:
        """Column of the best single target of the train part."""
        return self.trial.targets.index(best_single(self.train))

    @cached_property
    def shared(self) -> Int[NDArray[np.int64], " shared"]:
        """The queries on which every target that is ever chosen has a known label."""
        used = np.unique(self.choice)
        return np.flatnonzero(~np.isnan(self.trial.correct[:, used]).any(axis=1))

    def estimate(
        self,
        statistic: Callable[[Weights], PerResample],
        *,
        resamples: int,
        seed: int,
        reason: str = "too few of these queries have labels",
    ) -> Estimate:
        """A statistic of the queries' weights, with its interval from drawing conversations."""
        size, groups = len(self), self.trial.conversations
        each = chunks(size, count=resamples, seed=seed, width=size, groups=groups)
        resampled = [statistic(weights) for weights in each]
        value = float(statistic(ones(size))[0])
        return Estimate.of(value, np.concatenate([np.zeros(0), *resampled]), reason=reason)
