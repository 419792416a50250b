"""Predictions joined with labels and observed costs, and which queries are compared.

A `Trial` is one system on the queries that it is judged on. Where labels err or chance selected
them, its tables hold estimates of them (`chance_labels`).

Where answers were sampled several times, the oracle is also measured without the luck of single
runs. An oracle that sees the labels it is judged by mistakes a lucky guess for ability. Of ten
targets that are each right half of the time, one is right on nearly every query. The held-out
oracle sees all runs of each target but one and is judged by that one, so it gains nothing by luck.
It knows less than an oracle with infinitely many runs, whose accuracy lies between this one and the
plain one. With more runs the gap narrows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.data import LEAST_SHARE, RoutingDataset, binary, well_measured
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation.bootstrap import KnownTable, plain
from prefill_router.evaluation.chance_labels import ChanceLabels, Choice, Overlap
from prefill_router.evaluation.quality_checks import PerCell, QualityCheck
from prefill_router.policy import Lambda, LambdaPath, Policy, Predictions
from prefill_router.short_repr import short_repr

PerQuery = Float[NDArray[np.float64], " query"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Trial:
    """One system on the queries it is judged on. Rows were joined by query id.

    Attributes:
        query_ids: The queries.
        targets: The targets' names.
        correctness: Predicted probabilities of a correct answer.
        cost: Estimated costs on the scale of Equation 2.
        correct: Labels in [0, 1]; NaN where not measured. Where labels err or chance selected them,
            unbiased estimates of them, which may lie outside (`ChanceLabels`).
        observed_cost: US dollars, or such estimates; NaN where unknown.
        policy: Chooses a target from the probabilities and costs.
        quality: Scores of the answers in [0, 1], for a cascade; the probabilities if not given.
        domains: Benchmark and domain of each query; empty if not known.
        shared: The queries that all systems of a comparison can be compared on; None if there is
            no other system.
        runs: The number of runs that each label is the mean of; NaN or None where that isn't known.
        chance: The labels as they were observed, where they err or chance selected them; else None.
        fee: What the decision itself costs for each query, US dollars; nothing if not given.
        conversations: As `RoutingDataset.conversations`, of these queries.
    """

    query_ids: tuple[str, ...]
    targets: tuple[str, ...]
    correctness: PerCell
    cost: PerCell
    correct: PerCell
    observed_cost: PerCell
    policy: Policy = field(default_factory=Lambda)
    quality: PerCell | None = None
    domains: tuple[str, ...] = ()
    shared: Bool[NDArray[np.bool_], " query"] | None = None
    runs: PerCell | None = None
    chance: ChanceLabels | None = None
    fee: PerQuery | None = None
    conversations: tuple[str, ...] | None = None

    @classmethod
    def join(
        cls,
        predictions: Predictions,
        dataset: RoutingDataset,
        *,
        policy: Policy | None = None,
        check: QualityCheck | None = None,
        fee: Mapping[str, float] | None = None,
    ) -> "Trial":
        """Look up the labels and observed costs of the predicted queries.

        Args:
            predictions: The judged predictions.
            dataset: Labels and observed costs.
            policy: How targets are chosen; the paper's if not given.
            check: Scores the answers, for a cascade. An answer that it can't score ends the
                cascade, so that the query is left out and not counted as wrong.
            fee: What the decision itself costs by query id, US dollars.

        Raises:
            DataError: The dataset or the fees lack some of the queries, or nothing was measured on
                them, or the labels are votes.
            ConfigError: The dataset lacks some of the targets, or a cascade is to be judged by
                labels that chance selected.
        """
        dataset.meaning.refuse_votes("accuracy at each cost")
        data = dataset.select(predictions.query_ids, targets=predictions.targets)
        if np.isnan(data.correct).all():
            raise DataError(
                f"none of the {len(predictions)} queries has a label; evaluate on scored answers"
            )
        rule = policy or Lambda()
        quality = (
            _read_own_scores(rule, predictions, data)
            if check is None
            else _score_answers(check, predictions, data.correct)
        )
        chance = ChanceLabels.of(data, predictions.correctness)
        if quality is not None and chance is not None and chance.selected:
            raise ConfigError(
                "a cascade can't be judged by labels that chance selected, since its next "
                "step depends on answers that may be missing; judge it on queries that every "
                "target has answered"
            )
        cost = data.observed_cost
        return cls(
            predictions.query_ids,
            predictions.targets,
            predictions.correctness,
            predictions.normalised_cost,
            data.correct if chance is None else chance.label,
            cost if chance is None else chance.cost(cost, predictions.estimated_cost),
            rule,
            quality,
            domains=data.domains,
            runs=data.runs,
            chance=chance,
            fee=None if fee is None else _look_up_fees(fee, predictions.query_ids),
            conversations=data.conversations,
        )

    def __len__(self) -> int:
        return len(self.query_ids)

    @cached_property
    def path(self) -> LambdaPath:
        """The winner of every query at every setting of the policy."""
        table = self.correctness if self.quality is None else self.quality
        return self.policy.path(table, self.cost, targets=self.targets)

    @cached_property
    def most_probable(self) -> Int[NDArray[np.int64], " query"]:
        """The target of each query at the policy's most accurate end (lam = 1, argmax routing)."""
        return self.path.at(1)

    @cached_property
    def paid(self) -> PerCell:
        """Cost of choosing each target under the policy, US dollars, with the fee for the decision.

        A cascade pays for several targets.
        """
        paid = self.policy.charge(self.observed_cost, self.cost, targets=self.targets)
        return paid if self.fee is None else paid + self.fee[:, None]

    @cached_property
    def judged(self) -> Bool[NDArray[np.bool_], " target"]:
        """Which targets are measured on enough of the labelled queries to be compared."""
        return well_measured(self.correct)

    @cached_property
    def compared(self) -> Bool[NDArray[np.bool_], " query"]:
        """The queries on which the outcomes of all sides are known.

        These are the outcomes of all compared targets, and of all that the policy chooses at any
        setting. Router, single targets, mixes and oracle are compared with each other on these
        queries alone, so that a missing label helps none of them. A cost counts as an outcome where
        the target has known costs at all. None are compared where overlap is lacking.
        """
        costless = np.isnan(self.observed_cost)
        lacking = np.isnan(self.correct) | (costless & self.priced)
        compared = np.logical_not(np.any(lacking & self._needed, axis=1))
        if self.overlap is not None and self.overlap.refusal:
            compared[:] = False
        return compared if self.shared is None else np.logical_and(compared, self.shared)

    @cached_property
    def _needed(self) -> Bool[NDArray[np.bool_], "query target"]:
        needed = np.broadcast_to(self.judged, self.correct.shape).copy()
        needed[self.path.query, self.path.target] = True
        return needed

    @cached_property
    def overlap(self) -> Overlap | None:
        """Whether all that is compared can be estimated; None unless chance selected labels."""
        return self.overlap_of([self.path.at(0), self.path.at(1)], also=self._needed)

    def overlap_of(
        self,
        choices: Sequence[Choice],
        *,
        also: Bool[NDArray[np.bool_], "query target"] | None = None,
    ) -> Overlap | None:
        """The same of these choices, see `Overlap.of`."""
        if self.chance is None or not self.chance.selected:
            return None
        return Overlap.of(self.chance, self.targets, choices, also=also)

    @cached_property
    def observed(self) -> PerCell:
        """Labels as they were observed, in [0, 1]; NaN where not."""
        return self.correct if self.chance is None else self.chance.observed

    @cached_property
    def joint(self) -> PerCell:
        """Labels for what several targets' labels on one query say together.

        All NaN where labels err or chance selected them: of an erring judge's labels the best of
        several is right too often, and which labels are observed together isn't known.
        """
        return self.correct if self.chance is None else np.full(self.correct.shape, np.nan)

    @cached_property
    def priced(self) -> Bool[NDArray[np.bool_], " target"]:
        """Which targets have known costs on enough of the queries that they are measured on."""
        is_known = ~np.isnan(self.correct)
        with_cost = (is_known & ~np.isnan(self.observed_cost)).sum(axis=0)
        is_enough = with_cost >= LEAST_SHARE * is_known.sum(axis=0)
        priced: NDArray[np.bool_] = (with_cost > 0) & is_enough
        return priced

    @cached_property
    def single_label(self) -> PerCell:
        """The labels of the compared targets; NaN for the others."""
        return np.where(self.judged, self.correct, np.nan)

    @cached_property
    def single_cost(self) -> PerCell:
        """The observed costs of the compared targets, US dollars; NaN for the others."""
        return np.where(self.judged & self.priced, self.observed_cost, np.nan)

    @cached_property
    def single_tables(self) -> tuple[KnownTable, KnownTable]:
        """`single_label` and `single_cost`, for means under many weights."""
        return KnownTable.of(self.single_label), KnownTable.of(self.single_cost)

    @cached_property
    def best_label(self) -> PerQuery:
        """The oracle: each query's highest label over the targets measured; NaN without any."""
        label: PerQuery = np.fmax.reduce(self.joint, axis=1)
        return label

    @cached_property
    def held_out_label(self) -> PerQuery:
        """The held-out oracle's label; NaN where labels come from single runs."""
        return held_out_oracle(self.joint, self.runs)

    @cached_property
    def best_cost(self) -> PerQuery:
        """The lowest observed cost among the targets that were right; NaN without any."""
        right = binary(self.joint) == 1
        cost: PerQuery = np.fmin.reduce(np.where(right, self.observed_cost, np.nan), axis=1)
        return cost

    def squared_error(self, predicted: PerCell) -> PerCell:
        """Squared differences of predictions and labels; unbiased where these are estimates."""
        if self.chance is None:
            return (predicted - self.correct) ** 2
        return predicted**2 + (1 - 2 * predicted) * self.correct  # y ** 2 is y

    def of_choice(self, table: PerCell, choice: Int[NDArray[np.int64], " query"]) -> PerQuery:
        """The table's value for the chosen target of each query."""
        result: PerQuery = table[np.arange(len(self)), choice]
        return result


_Value = TypeVar("_Value")


def once_per_trial(compute: Callable[[Trial], _Value]) -> Callable[[Trial], _Value]:
    """A function of a trial that is computed once, and whose value is held with the trial."""
    name = f"_{compute.__name__}"

    @wraps(compute)
    def compute_once(trial: Trial) -> _Value:
        if name not in vars(trial):
            vars(trial)[name] = compute(trial)
        value: _Value = vars(trial)[name]
        return value

    return compute_once


def _look_up_fees(fee: Mapping[str, float], query_ids: tuple[str, ...]) -> PerQuery:
    lacking = [query_id for query_id in query_ids if query_id not in fee]
    if lacking:
        raise DataError(
            f"the decision's cost isn't known for {len(lacking)} of {len(query_ids)} queries, such "
            f"as {lacking[0]!r}; give it for all or for none"
        )
    return np.array([fee[query_id] for query_id in query_ids], dtype=np.float64)


def _score_answers(check: QualityCheck, predictions: Predictions, correct: PerCell) -> PerCell:
    scores = check.scores(predictions.query_ids, predictions.targets, correct)
    return np.where(np.isnan(scores), 1, scores)


def _read_own_scores(
    policy: Policy, predictions: Predictions, data: RoutingDataset
) -> PerCell | None:
    """The scores of the policy's own scorer; None where it has none."""
    scores = policy.scores(predictions.correctness, data.output_tokens, targets=predictions.targets)
    if scores is predictions.correctness:
        return None
    return np.where(np.isnan(data.correct), 1, scores)


_WHOLE = 1e-6
"""Tolerance for the mean of 0/1 runs times their number to be a whole number."""


def held_out_oracle(correct: PerCell, runs: PerCell | None) -> PerQuery:
    """The mean label of an oracle that sees all runs of every target but the one it is judged by.

    The mean is over all ways to leave one run of each target out; ties between targets are broken
    uniformly at random. NaN for queries with a label that isn't known to be the mean of two or more
    runs, each right or wrong.

    Args:
        correct: The labels; NaN where missing.
        runs: The number of runs that each label is the mean of; NaN or None where that isn't known.
    """
    oracle = np.full(len(correct), np.nan)
    if runs is None:
        return oracle
    is_known = ~np.isnan(correct)
    right: PerCell = np.rint(np.where(is_known, correct * runs, 0.0))
    is_countable = (runs >= 2) & (np.abs(correct * runs - right) < _WHOLE)
    rows = is_known.any(axis=1) & (is_countable | ~is_known).all(axis=1)
    if rows.any():
        number: PerCell = np.where(is_known, runs, 2.0)
        oracle[rows] = _average_over_ties(right[rows], number[rows], is_known[rows])
    return oracle


def _average_over_ties(
    right: PerCell, runs: PerCell, is_known: Bool[NDArray[np.bool_], "query target"]
) -> PerQuery:
    """The probability that the left-out run of the chosen target is right."""
    # The mean of the other runs, if the left-out one was right, and if it was wrong.
    mean_if_right = np.where(is_known, (right - 1) / (runs - 1), -1)
    mean_if_wrong = np.where(is_known, right / (runs - 1), -1)
    chance = np.where(is_known, right / runs, 0)
    # Ties are broken by a uniform draw per target; this integrates over the chosen one's draw.
    nodes, weights = np.polynomial.legendre.leggauss(right.shape[1] // 2 + 1)
    total = np.zeros(len(right))
    for k in range(right.shape[1]):
        mean = mean_if_right[:, [k]]
        others = np.arange(right.shape[1]) != k
        below = chance * (mean_if_right < mean) + (1 - chance) * (mean_if_wrong < mean)
        level = chance * (mean_if_right == mean) + (1 - chance) * (mean_if_wrong == mean)
        win_chance = np.zeros(len(right))
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            win_chance += weight * (below + node * level)[:, others].prod(axis=1)
        total += chance[:, k] * win_chance
    return total


_SHORT = 0.75
"""A domain is named if its compared share is below this fraction of the overall one."""
_MOST_NAMES = 4


@final
@dataclass(frozen=True)
class DomainCoverage:
    """How much of a domain is compared.

    Attributes:
        domain: Benchmark and domain, as one name.
        queries: Number of its queries.
        compared: Number of these that are compared.
    """

    domain: str
    queries: int
    compared: int


@final
@dataclass(frozen=True)
class Coverage:
    """The queries on which router, single targets, mixes and oracle are compared with each other.

    Attributes:
        queries: Number of evaluated queries.
        compared: Number of compared queries: those where the outcomes of all sides are known.
        domains: The same numbers by domain, in order of the names.
        left_out: Targets that are measured on too few queries to be compared.
        harder: How much lower the targets' accuracy is on the other queries than on the compared
            ones, each label relative to its target's mean. NaN where either side has no label.
        overlap: Whether the labels could be observed, where chance selected them; else None.
    """

    queries: int
    compared: int
    domains: tuple[DomainCoverage, ...]
    left_out: tuple[str, ...]
    harder: float
    overlap: Overlap | None = None

    @classmethod
    def of(cls, trial: Trial) -> "Coverage":
        """Count the queries of a trial."""
        domains = trial.domains or ("",) * len(trial)
        sizes = Counter(domains)
        compared = Counter(d for d, ok in zip(domains, trial.compared, strict=True) if ok)
        pairs = zip(trial.targets, trial.judged, strict=True)
        return cls(
            len(trial),
            int(trial.compared.sum()),
            tuple(DomainCoverage(name, sizes[name], compared[name]) for name in sorted(sizes)),
            tuple(name for name, enough in pairs if not enough),
            _compare_difficulty(trial, trial.compared),
            trial.overlap,
        )

    @property
    def note(self) -> str:
        """How many queries are compared and why not all, in sentences; empty if all are."""
        if self.overlap is not None:
            return self.overlap.note
        if self.compared == self.queries and not self.left_out:
            return ""
        parts = [
            f"{self.compared:,} of {self.queries:,} queries are compared: those on which the "
            "outcomes of all sides are known"
        ]
        short = self._list_short()
        if short:
            parts.append("of " + ", of ".join(short) + " are")
        if self.compared and abs(self.harder) >= 0.005:
            way = "less" if self.harder > 0 else "more"
            parts.append(
                f"on the others the targets are right {100 * abs(self.harder):.1f} points {way} "
                "often"
            )
        if self.left_out:
            names = ", ".join(self.left_out[:_MOST_NAMES])
            others = len(self.left_out) - _MOST_NAMES
            more = f" and {others} more" if others > 0 else ""
            parts.append(f"{names}{more} had too few labels to be compared with")
        if not self.compared:
            parts.append("score the answers of every target on the same queries")
        return "; ".join(parts) + "."

    def _list_short(self) -> list[str]:
        least = _SHORT * self.compared / self.queries
        rows = [d for d in self.domains if d.compared < least * d.queries and d.domain]
        rows.sort(key=lambda d: d.compared - self.compared / self.queries * d.queries)
        phrases = [f"{d.domain} {d.compared:,} of {d.queries:,}" for d in rows[:_MOST_NAMES]]
        rest = rows[_MOST_NAMES:]
        if rest:
            total = sum(d.compared for d in rest), sum(d.queries for d in rest)
            phrases.append(f"{len(rest)} more {total[0]:,} of {total[1]:,}")
        return phrases

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        numbers = {**asdict(self), "harder": plain(self.harder), "note": self.note}
        del numbers["overlap"]
        return numbers if self.overlap is None else {**numbers, "overlap": self.overlap.to_dict()}


def _compare_difficulty(trial: Trial, is_compared: Bool[NDArray[np.bool_], " query"]) -> float:
    is_known = ~np.isnan(trial.single_label)
    count = is_known.sum(axis=0)
    mean = np.where(is_known, trial.correct, 0).sum(axis=0) / np.maximum(count, 1)
    beyond = np.where(is_known, trial.correct - mean, np.nan)
    inside, outside = beyond[is_compared], beyond[~is_compared]
    if np.isnan(inside).all() or np.isnan(outside).all():
        return float("nan")
    return float(np.nanmean(inside) - np.nanmean(outside))
