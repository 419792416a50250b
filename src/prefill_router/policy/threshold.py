"""A strong and a weak target: the strong one answers what it is likely enough to win.

RouteLLM (Ong et al., 2024).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.policy.base import Policy, options
from prefill_router.policy.equation import PerCell, check_tables
from prefill_router.policy.path import LambdaPath
from prefill_router.policy.steps import columns, record_path

WinScore = Literal["difference", "odds", "weak"]


@final
@dataclass(frozen=True, kw_only=True)
class Threshold(Policy):
    """The strong target where its win score is at least `1 - at`, else the weak one.

    At 0 the weak target answers everything, at 1 the strong one does. Other targets never answer,
    and cost plays no part.

    Attributes:
        strong: The name of the strong target.
        weak: The name of the weak one.
        score: How the win score is made of the probabilities: `difference`, (1 + p_strong -
            p_weak) / 2; `odds`, the chance that the strong one is right where only one of the two
            is, 1/2 where neither or both surely are; or `weak`, 1 - p_weak, which doesn't need to
            know the strong target.

    Raises:
        ConfigError: Both are the same target.
    """

    strong: str
    weak: str
    score: WinScore = "difference"

    def __post_init__(self) -> None:
        if self.strong == self.weak:
            raise ConfigError(f"strong and weak are both {self.strong!r}; name two targets")

    @property
    def kind(self) -> Literal["threshold"]:
        """`threshold`."""
        return "threshold"

    def win_score(
        self, correctness: PerCell, *, targets: tuple[str, ...]
    ) -> Float[NDArray[np.float64], " query"]:
        """How likely the strong target is to win each query, in [0, 1].

        Raises:
            ConfigError: The targets lack one of the two.
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
            ConfigError: The shapes differ, a number isn't finite, or the targets lack one of the
                two.
        """
        check_tables(correctness, cost)
        score = np.clip(self.win_score(correctness, targets=targets), 0, 1)
        weak_to = np.maximum(np.nextafter(1 - score, -1), 0)
        pair = np.array(columns((self.weak, self.strong), targets, self.kind), dtype=np.int64)
        holds_to = np.stack([weak_to, np.full(len(score), np.inf)], axis=1)
        return record_path(np.tile(pair, (len(score), 1)), holds_to)

    def to_dict(self) -> dict[str, Any]:
        """The kind and the options."""
        return {"kind": self.kind, "strong": self.strong, "weak": self.weak, "score": self.score}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Threshold":
        """The policy of `to_dict`.

        Raises:
            CorruptError: An option is unknown, of the wrong type, or missing.
            ConfigError: Both are the same target.
        """
        given = options(
            value, {"strong": str, "weak": str, "score": str}, needed=("strong", "weak")
        )
        score = given.get("score", "difference")
        if score not in get_args(WinScore):
            raise CorruptError(f"the win score is {score!r}; known are {list(get_args(WinScore))}")
        return cls(**given)
