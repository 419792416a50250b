"""The paper's policy, Equation 2, and its end: the most probable target whatever it costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from prefill_router.policy.base import Policy, options
from prefill_router.policy.equation import PerCell, rank
from prefill_router.policy.path import LambdaPath, lambda_path


@final
@dataclass(frozen=True)
class Lambda(Policy):
    """The best score of Equation 2; `at` is lam."""

    @property
    def kind(self) -> Literal["lambda"]:
        """`lambda`."""
        return "lambda"

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

    def to_dict(self) -> dict[str, Any]:
        """The kind."""
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Lambda":
        """The policy of `to_dict`.

        Raises:
            CorruptError: It has options.
        """
        options(value, {})
        return cls()


@final
@dataclass(frozen=True)
class Argmax(Policy):
    """The most probable target, whatever it costs; the same at every `at`."""

    @property
    def kind(self) -> Literal["argmax"]:
        """`argmax`."""
        return "argmax"

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

    def to_dict(self) -> dict[str, Any]:
        """The kind."""
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Argmax":
        """The policy of `to_dict`.

        Raises:
            CorruptError: It has options.
        """
        options(value, {})
        return cls()
