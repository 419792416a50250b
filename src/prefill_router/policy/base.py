"""What a policy is: how predicted correctness and cost become a choice."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.errors import CorruptError
from prefill_router.policy.path import LambdaPath, PerCell, rank


class Policy(ABC):
    """A family of choices with one parameter, `at`, from 0 to 1.

    0 is the cheapest or weakest end, 1 the most accurate one. A frozen dataclass whose fields are
    what a recipe may say of it, besides its `kind`. Each query is decided on its own: other rows
    never matter.
    """

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its name in files and recipes, one of `policy.KINDS`."""

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
            ConfigError: The shapes differ, a number isn't finite, or a named target isn't there.
        """

    def choose(
        self, correctness: PerCell, cost: PerCell, at: float, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], " query"]:
        """The winning target of each query at one setting.

        Raises:
            ConfigError: As `path`, or `at` is outside [0, 1].
        """
        return self.path(correctness, cost, targets=targets).at(at)

    def order(
        self, correctness: PerCell, cost: PerCell, at: float, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], "query target"]:
        """The winner of each query, then the others by Equation 2: whom to ask if it fails.

        Raises:
            ConfigError: As `choose`.
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
        """What it weighs once answers are there: the predictions, unless it looks at answers.

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
        """What it costs to get the answer of each target by this policy; by default, its own cost.

        Args:
            observed: What asking each target cost, US dollars; NaN where unknown.
            cost: Estimated costs on the scale of Equation 2.
            targets: The names of the columns.
        """
        return observed

    def told(self) -> dict[str, Any]:
        """What reports say of it, for people; all that `to_dict` holds, unless that is much."""
        return self.to_dict()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The kind and the options, as plain values for JSON."""

    @classmethod
    @abstractmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Policy":
        """The policy of `to_dict`.

        Raises:
            CorruptError: An option is unknown or of the wrong type.
            ConfigError: The options contradict each other.
        """


def options(
    value: Mapping[str, Any], known: Mapping[str, type], *, needed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The options of a saved policy but its kind, after a check of their names and types.

    Raises:
        CorruptError: One is unknown, of another type, or missing.
    """
    given = {name: option for name, option in value.items() if name != "kind"}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise CorruptError(
            f"the policy {value.get('kind')!r} has the unknown options {unknown}; "
            f"known are {list(known)}"
        )
    lacking = [name for name in needed if name not in given]
    if lacking:
        raise CorruptError(f"the policy {value.get('kind')!r} lacks the options {lacking}")
    for name, option in given.items():
        if not isinstance(option, known[name]) or isinstance(option, bool):
            raise CorruptError(
                f"the option {name} of the policy {value.get('kind')!r} is {option!r}; it must be "
                f"of the type {known[name].__name__}"
            )
    return given


def names(value: Any, what: str) -> tuple[str, ...]:
    """A saved list of names.

    Raises:
        CorruptError: It is no list of strings.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise CorruptError(f"{what} is {value!r}; it must be a list of targets' names")
    return tuple(value)
