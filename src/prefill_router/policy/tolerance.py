"""The cheapest target that is nearly as probably right as the best.

NVIDIA's LLM router blueprint, version 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from prefill_router.policy.base import Policy, options
from prefill_router.policy.equation import PerCell, check_tables
from prefill_router.policy.path import LambdaPath
from prefill_router.policy.steps import by_cost, record_path


@final
@dataclass(frozen=True)
class Tolerance(Policy):
    """The cheapest target whose probability is at most `1 - at` below the highest.

    At 0 every target is good enough, so the cheapest answers; at 1 only the most probable ones are.
    """

    @property
    def kind(self) -> Literal["tolerance"]:
        """`tolerance`."""
        return "tolerance"

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
        # The best ones hold beyond 1, so that no target that is worse by a rounding holds at 1.
        holds_to = np.where(short == 0, np.inf, 1 - short)
        return record_path(order, np.take_along_axis(holds_to, order, axis=1))

    def to_dict(self) -> dict[str, Any]:
        """The kind."""
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Tolerance":
        """The policy of `to_dict`.

        Raises:
            CorruptError: It has options.
        """
        options(value, {})
        return cls()
