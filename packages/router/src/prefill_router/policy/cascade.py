"""Cascades: call the cheap target first, and the next one only if its answer isn't good enough.

FrugalGPT (Chen, Zaharia and Zou, 2023). Every call on the way is paid for. Its scorer, which gives
the probability that an answer is right, is a DistilBERT that reads query and answer. This one is a
logistic regression for each target, on the router's prediction and on the length of the answer,
which every log of answers has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from prefill_router.errors import ConfigError, UpstreamError
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
from prefill_router.policy.policies import Policy
from prefill_router.serialization import Part, Saved
from prefill_router.short_repr import short_repr
from prefill_router.statistics import shrunken_logistic

_FIRST = np.array([0.0, 1.0, 0.0, 0.0])
"""Weights of bias, logit, length and its square: the start is the prediction itself."""
_SURE = 1e-6

_Row = Annotated[tuple[float, ...], Field(min_length=6, max_length=6)]
_Rows = Annotated[dict[str, _Row], Field(min_length=1)]


@short_repr
@final
@dataclass(frozen=True)
class AnswerScorer(Part):
    """Scores answers by prediction and length. Made by `fit`.

    Attributes:
        rows: For each target: mean and standard deviation of log(1 + output tokens), then the
            weights of 1, the prediction's logit, the standardised length and its square.
    """

    noun: ClassVar[str] = "cascade's scorer"
    rows: Annotated[Mapping[str, tuple[float, ...]], Saved("targets", form=_Rows)]

    @classmethod
    def fit(
        cls, correctness: PerCell, tokens: PerCell, correct: PerCell, *, targets: tuple[str, ...]
    ) -> "AnswerScorer":
        """Fit to answers with known labels; a target without any keeps its predictions.

        Args:
            correctness: Out-of-fold predictions.
            tokens: Output tokens of the answers; NaN where unknown.
            correct: Labels in [0, 1]; NaN where missing.
            targets: The names of the columns.
        """
        rows = {}
        for k, name in enumerate(targets):
            is_labelled = ~np.isnan(correct[:, k])
            length = np.log1p(tokens[is_labelled, k])
            lengths = length[np.isfinite(length)]
            mean = float(lengths.mean()) if len(lengths) else 0.0
            spread = float(lengths.std()) if len(lengths) else 0.0
            about = (mean, spread if spread > 1e-9 else 1.0)
            columns = _make_columns(correctness[is_labelled, k], tokens[is_labelled, k], *about)
            weights = shrunken_logistic(
                _FIRST, columns.__matmul__, columns.T.__matmul__, correct[is_labelled, k]
            )
            rows[name] = (*about, *weights.tolist())
        return cls(rows)

    def scores(self, correctness: PerCell, tokens: PerCell, *, targets: tuple[str, ...]) -> PerCell:
        """The score of every answer, in [0, 1]; an unknown length counts as average.

        Args:
            correctness: Predicted probabilities.
            tokens: Output tokens of the answers; NaN where unknown.
            targets: The names of the columns.

        Raises:
            ConfigError: It wasn't fitted for one of the targets.
        """
        lacking = [name for name in targets if name not in self.rows]
        if lacking:
            raise ConfigError(f"the cascade's scorer doesn't know {lacking}; fit the router again")
        from scipy.special import expit

        scores = np.empty(correctness.shape)
        for k, name in enumerate(targets):
            mean, spread, *weights = self.rows[name]
            columns = _make_columns(correctness[:, k], tokens[:, k], mean, spread)
            scores[:, k] = expit(columns @ np.array(weights))
        return scores

    def verify(self) -> None:
        """Check that lengths can be divided by their spreads."""
        if any(row[1] <= 0 for row in self.rows.values()):
            raise ConfigError("a standard deviation isn't positive")


def _make_columns(
    correctness: Float[NDArray[np.float64], " query"],
    tokens: Float[NDArray[np.float64], " query"],
    mean: float,
    spread: float,
) -> Float[NDArray[np.float64], "query 4"]:
    from scipy.special import logit

    length = np.clip(np.nan_to_num((np.log1p(tokens) - mean) / spread, nan=0.0), -4, 4)
    sure = logit(np.clip(correctness, _SURE, 1 - _SURE))
    return np.stack([np.ones(len(length)), sure, length, length**2], axis=1)


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
                f"a cascade has {len(self.targets)} targets and the knots {self.knots}; each "
                "knot needs a setting and a threshold for every target except the last"
            )
        table = np.array(self.knots)
        sound = (np.diff(table, axis=0) >= 0).all() and (np.diff(table[:, 0]) > 0).all()
        if not (sound and table.min() >= 0 and table.max() <= 1 and self._is_whole(table)):
            raise ConfigError(
                "the knots of a cascade must be numbers in [0, 1] that never decrease, with "
                f"settings from 0 to 1 and thresholds from 0; got {self.knots}"
            )

    @staticmethod
    def _is_whole(table: NDArray[np.float64]) -> bool:
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
        order = np.array(columns(self.targets, targets, self.kind), dtype=np.int64)
        return np.tile(order, (len(cost), 1))

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
            score = _check_score(check(name, answer), name)
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
        summary: dict[str, Any] = {"kind": self.kind, "targets": list(self.targets)}
        if self.knots:
            summary["thresholds"] = "learned on the train part, one for each stage"
        if self.scorer is not None:
            summary["scorer"] = "prediction and length of the answer"
        return summary


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


def _check_score(score: float, target: str) -> float:
    if not 0 <= score <= 1:
        raise ConfigError(
            f"the quality check scored an answer of {target!r} {score}; scores must be in [0, 1]"
        )
    return float(score)
