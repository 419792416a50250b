"""The interface of policies, which turn predicted correctness and cost into a choice, by kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.policy.path import LambdaPath, PerCell, rank
from prefill_router.serialization import Kinds, Part


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


_POLICIES = Kinds[type[Policy]](
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
)
KINDS = _POLICIES.names


def from_dict(value: Mapping[str, Any]) -> Policy:
    """The policy that `Policy.to_dict` describes.

    Raises:
        CorruptError: The kind is unknown, or an option is unknown or of the wrong type.
        ConfigError: The options contradict each other.
    """
    return _POLICIES.of_saved(value).parse(value)
