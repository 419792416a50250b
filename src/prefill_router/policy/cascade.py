"""Ask the cheap target first, and the next one only where its answer doesn't look good enough.

FrugalGPT (Chen, Zaharia and Zou, 2023). Every answer on the way is paid for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.brief import brief
from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.policy.base import Policy, names, options
from prefill_router.policy.equation import PerCell, check_lam, check_tables
from prefill_router.policy.path import LambdaPath
from prefill_router.policy.steps import by_cost, columns, record_path, to_the_end

Answer = TypeVar("Answer")


@final
@dataclass(frozen=True)
class Asked:
    """One target that a cascade asked.

    Attributes:
        target: Its name.
        score: The quality check's score of its answer; None where it gave none.
        failure: Why it gave none; empty where it did.
    """

    target: str
    score: float | None
    failure: str = ""


@brief
@final
@dataclass(frozen=True)
class Run(Generic[Answer]):
    """What a cascade came to.

    Attributes:
        target: Whose answer it is.
        answer: It.
        trail: Everyone asked, in order; all of them are paid for.
    """

    target: str
    answer: Answer
    trail: tuple[Asked, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Cascade(Policy):
    """The answer of the first target whose answer scores at least `at` in a quality check.

    The scores are of *answers*, so they are known only after asking: the table that `path` takes
    as correctness holds them. The last target's answer is taken as it is. At 0 the first target
    answers everything; towards 1 more and more is asked of all of them.

    Attributes:
        targets: Whom to ask, in this order; empty for all, by rising estimated cost of the query.

    Raises:
        ConfigError: A target is named twice.
    """

    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError("a cascade asks each target once; a name is repeated")

    @property
    def kind(self) -> Literal["cascade"]:
        """`cascade`."""
        return "cascade"

    def turns(
        self, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], "query turn"]:
        """The columns of the targets in the order in which they are asked.

        Raises:
            ConfigError: A named target isn't there.
        """
        if not self.targets:
            return by_cost(np.zeros(cost.shape), cost)
        one = np.array(columns(self.targets, targets, self.kind), dtype=np.int64)
        return np.tile(one, (len(cost), 1))

    def path(
        self, correctness: PerCell, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> LambdaPath:
        """Whose answer is taken, over the score asked for, exactly.

        Args:
            correctness: The quality check's scores of the answers, in [0, 1].
            cost: Estimated costs on the scale of Equation 2; they only give the order.
            targets: The names of the columns; needed where the cascade names targets.

        Raises:
            ConfigError: The shapes differ, a number isn't finite or a score is outside [0, 1], or
                a named target isn't there.
        """
        check_tables(correctness, cost)
        if not ((correctness >= 0) & (correctness <= 1)).all():
            raise ConfigError("the scores of a cascade's quality check must be in [0, 1]")
        turns = self.turns(cost, targets=targets)
        holds_to = np.take_along_axis(correctness, turns, axis=1)
        holds_to[:, -1] = 1
        return record_path(turns, to_the_end(holds_to))

    def charge(self, observed: PerCell, cost: PerCell, *, targets: tuple[str, ...] = ()) -> PerCell:
        """What it costs to get as far as each target: its own cost and of all asked before.

        NaN for targets that are never asked, and from the first unknown cost on.
        """
        turns = self.turns(cost, targets=targets)
        charged: PerCell = np.full(observed.shape, np.nan)
        paid = np.cumsum(np.take_along_axis(observed, turns, axis=1), axis=1)
        np.put_along_axis(charged, turns, paid, axis=1)
        return charged

    def run(
        self,
        ask: Callable[[str], Answer],
        check: Callable[[str, Answer], float],
        *,
        at: float,
        targets: tuple[str, ...] = (),
    ) -> Run[Answer]:
        """Ask one after the other until an answer passes.

        A target that raises an UpstreamError counts as asked in vain. If the last one fails, the
        best answer so far is taken.

        Args:
            ask: Gives a target's answer.
            check: Scores a target's answer, in [0, 1].
            at: The score that passes.
            targets: Whom to ask, from cheap to dear, where the cascade doesn't name them.

        Raises:
            ConfigError: Nobody is to be asked, `at` or a score is outside [0, 1].
            UpstreamError: No target gave an answer; the last one's.
        """
        check_lam(at)
        turns = self.targets or targets
        if not turns:
            raise ConfigError("the cascade has nobody to ask; name the targets from cheap to dear")
        trail: list[Asked] = []
        best: tuple[float, str, Answer] | None = None
        failure: UpstreamError | None = None
        for name in turns:
            try:
                answer = ask(name)
            except UpstreamError as error:
                failure = error
                trail.append(Asked(name, None, error.failure))
                continue
            score = _checked(check(name, answer), name)
            trail.append(Asked(name, score))
            if score >= at or name == turns[-1]:
                return Run(name, answer, tuple(trail))
            if best is None or score > best[0]:
                best = (score, name, answer)
        if best is None:
            raise failure or ConfigError("the cascade asked nobody")
        return Run(best[1], best[2], tuple(trail))

    def to_dict(self) -> dict[str, Any]:
        """The kind and the options."""
        return {"kind": self.kind, "targets": list(self.targets)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Cascade":
        """The policy of `to_dict`.

        Raises:
            CorruptError: An option is unknown or of the wrong type.
            ConfigError: A target is named twice.
        """
        given = options(value, {"targets": list})
        return cls(targets=names(given.get("targets", []), "targets"))


def _checked(score: float, target: str) -> float:
    if not 0 <= score <= 1:
        raise ConfigError(
            f"the quality check scored an answer of {target!r} {score}; scores are in [0, 1]"
        )
    return float(score)
