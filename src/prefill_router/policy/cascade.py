"""Cascades: call the cheap target first, and the next one only if its answer isn't good enough.

FrugalGPT (Chen, Zaharia and Zou, 2023). Every call on the way is paid for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import AfterValidator

from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.policy.base import Policy
from prefill_router.policy.path import (
    LambdaPath,
    PerCell,
    by_cost,
    check_lam,
    check_tables,
    columns,
    record_path,
    to_the_end,
)
from prefill_router.policy.scorer import AnswerScorer
from prefill_router.serialization import Saved
from prefill_router.short_repr import short_repr

Answer = TypeVar("Answer")


@final
@dataclass(frozen=True)
class CascadeAttempt:
    """A call to one target of a cascade.

    Attributes:
        target: The target's name.
        score: The quality check's score of its answer; None where the call failed.
        failure: Why the call failed; empty where it didn't.
    """

    target: str
    score: float | None
    failure: str = ""


@short_repr
@final
@dataclass(frozen=True)
class CascadeRun(Generic[Answer]):
    """The result of a cascade.

    Attributes:
        target: The target whose answer was taken.
        answer: The answer.
        trail: All calls in order; each of them is paid for.
    """

    target: str
    answer: Answer
    trail: tuple[CascadeAttempt, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Cascade(Policy):
    """The answer of the first target whose answer passes a quality check.

    The scores are those of *answers*, so they are known only after the calls; `path` takes them as
    its correctness. The last target's answer is always taken. At 0 the first target answers
    everything; towards 1 the score that passes rises.

    Attributes:
        targets: The targets in the order of the calls; empty for all, by ascending estimated cost.
        knots: The thresholds: rows of a setting and a threshold for each target but the last, with
            linear interpolation; settings increase from 0 to 1 and no threshold decreases. Empty: a
            score passes that is at least `at`. Learned by `FrugalCascade`.
        scorer: Scores answers; without one a quality check does, or the predictions are used.

    Raises:
        ConfigError: A target is named twice, or the knots are invalid.
    """

    kind: ClassVar[str] = "cascade"
    targets: tuple[str, ...] = ()
    knots: Annotated[tuple[tuple[float, ...], ...], Saved(sparse=True)] = ()
    scorer: Annotated[
        AnswerScorer | None,
        Saved(
            form=Annotated[dict[str, Any], AfterValidator(AnswerScorer.from_dict)],
            write=AnswerScorer.to_dict,
            sparse=True,
        ),
    ] = None

    def __post_init__(self) -> None:
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError("a cascade calls each target once; remove the repeated name")
        if not self.knots:
            return
        if not self.targets or {len(row) for row in self.knots} != {len(self.targets)}:
            raise ConfigError(
                "each knot of a cascade needs a setting and a threshold for every target but the "
                f"last; it has {len(self.targets)} targets and the knots {self.knots}"
            )
        table = np.array(self.knots)
        sound = (np.diff(table, axis=0) >= 0).all() and (np.diff(table[:, 0]) > 0).all()
        if not (sound and table.min() >= 0 and table.max() <= 1 and self._whole(table)):
            raise ConfigError(
                "the knots of a cascade must be numbers in [0, 1] that never decrease, with "
                f"settings from 0 to 1 and thresholds from 0; got {self.knots}"
            )

    @staticmethod
    def _whole(table: NDArray[np.float64]) -> bool:
        return not table[0].any() and bool(table[-1, 0] == 1)

    def scores(
        self, correctness: PerCell, tokens: PerCell, *, targets: tuple[str, ...] = ()
    ) -> PerCell:
        """Scores of answers by the scorer; the predictions where there is none."""
        if self.scorer is None:
            return correctness
        return self.scorer.scores(correctness, tokens, targets=targets)

    def thresholds(self, at: float, *, stages: int) -> tuple[float, ...]:
        """The score that passes at each stage but the last.

        Args:
            at: The setting.
            stages: The number of targets.

        Raises:
            ConfigError: `at` is outside [0, 1].
        """
        check_lam(at)
        if not self.knots:
            return (at,) * (stages - 1)
        table = np.array(self.knots)
        return tuple(float(np.interp(at, table[:, 0], column)) for column in table.T[1:])

    def turns(
        self, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> Int[NDArray[np.int64], "query turn"]:
        """The columns of the targets in the order of the calls.

        Raises:
            ConfigError: A named target is missing.
        """
        if not self.targets:
            return by_cost(np.zeros(cost.shape), cost)
        one = np.array(columns(self.targets, targets, self.kind), dtype=np.int64)
        return np.tile(one, (len(cost), 1))

    def path(
        self, correctness: PerCell, cost: PerCell, *, targets: tuple[str, ...] = ()
    ) -> LambdaPath:
        """The target whose answer is taken, over the whole range of `at`, exactly.

        Args:
            correctness: The quality check's scores of the answers, in [0, 1].
            cost: Estimated costs on the scale of Equation 2; they only determine the order.
            targets: The names of the columns; needed where the cascade names targets.

        Raises:
            ConfigError: The shapes differ, a number isn't finite or a score is outside [0, 1], or
                a named target is missing.
        """
        check_tables(correctness, cost)
        if not ((correctness >= 0) & (correctness <= 1)).all():
            raise ConfigError("the scores of a cascade's quality check must be in [0, 1]")
        turns = self.turns(cost, targets=targets)
        holds_to = np.take_along_axis(correctness, turns, axis=1)
        table = np.array(self.knots)
        for stage in range(holds_to.shape[1] - 1 if self.knots else 0):
            holds_to[:, stage] = _passes_to(holds_to[:, stage], table[:, 0], table[:, stage + 1])
        holds_to[:, -1] = 1
        return record_path(turns, to_the_end(holds_to))

    def charge(self, observed: PerCell, cost: PerCell, *, targets: tuple[str, ...] = ()) -> PerCell:
        """The cost of reaching each target: its own cost plus that of all calls before it.

        NaN for targets that are never called, and from the first unknown cost on.
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
    ) -> CascadeRun[Answer]:
        """Call one target after the other until an answer passes.

        A call that raises an UpstreamError has failed, and the next target is called. If the last
        one fails, the best answer so far is taken.

        Args:
            ask: Calls a target and returns its answer.
            check: Scores a target's answer, in [0, 1].
            at: The score that passes; with knots, the setting of the thresholds.
            targets: The targets from cheap to expensive, where the cascade doesn't name them.

        Raises:
            ConfigError: There are no targets, or `at` or a score is outside [0, 1].
            UpstreamError: All calls failed; it is the error of the last one.
        """
        check_lam(at)
        turns = self.targets or targets
        if not turns:
            raise ConfigError("the cascade has no targets; name them from cheap to expensive")
        enough = (*self.thresholds(at, stages=len(turns)), 0.0)
        trail: list[CascadeAttempt] = []
        best: tuple[float, str, Answer] | None = None
        failure: UpstreamError | None = None
        for name, least in zip(turns, enough, strict=True):
            try:
                answer = ask(name)
            except UpstreamError as error:
                failure = error
                trail.append(CascadeAttempt(name, None, error.failure))
                continue
            score = _checked(check(name, answer), name)
            trail.append(CascadeAttempt(name, score))
            if score >= least or name == turns[-1]:
                return CascadeRun(name, answer, tuple(trail))
            if best is None or score > best[0]:
                best = (score, name, answer)
        if best is None:
            raise failure or ConfigError("the cascade called no target")
        return CascadeRun(best[1], best[2], tuple(trail))

    def summary(self) -> dict[str, Any]:
        """The kind, the targets and what decides, without the learned numbers."""
        said: dict[str, Any] = {"kind": self.kind, "targets": list(self.targets)}
        if self.knots:
            said["thresholds"] = "learned on the train part, one for each stage"
        if self.scorer is not None:
            said["scorer"] = "prediction and length of the answer"
        return said


def _passes_to(
    score: Float[NDArray[np.float64], " query"],
    at: Float[NDArray[np.float64], " knot"],
    threshold: Float[NDArray[np.float64], " knot"],
) -> Float[NDArray[np.float64], " query"]:
    """The highest setting at which each score passes; 1 where it passes at all settings."""
    after = np.searchsorted(threshold, score, side="right")
    last = np.minimum(after, len(at) - 1)
    before = last - 1
    rise = np.maximum(threshold[last] - threshold[before], np.finfo(np.float64).tiny)
    share = np.minimum((score - threshold[before]) / rise, 1)
    between = at[before] + share * (at[last] - at[before])
    return np.where(after == len(at), 1.0, np.minimum(between, np.nextafter(1, 0)))


def _checked(score: float, target: str) -> float:
    if not 0 <= score <= 1:
        raise ConfigError(
            f"the quality check scored an answer of {target!r} {score}; scores must be in [0, 1]"
        )
    return float(score)
