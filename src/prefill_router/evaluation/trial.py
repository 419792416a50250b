"""Predictions beside what happened: the common ground of all metrics."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.brief import brief
from prefill_router.data import RoutingDataset, binary
from prefill_router.data.summary import LEAST_SHARE, well_measured
from prefill_router.errors import DataError
from prefill_router.evaluation.predictions import Predictions
from prefill_router.evaluation.quality import QualityCheck
from prefill_router.evaluation.repeats import held_out_oracle
from prefill_router.policy import Lambda, LambdaPath, Policy

PerCell = Float[NDArray[np.float64], "query target"]
PerQuery = Float[NDArray[np.float64], " query"]


def domains_of(dataset: RoutingDataset) -> tuple[str, ...]:
    """Benchmark and domain of each query, as one name."""
    return tuple(" / ".join(filter(None, (q.benchmark, q.domain))) for q in dataset.queries)


@brief
@final
@dataclass(frozen=True, eq=False)
class Trial:
    """One system on the queries it is judged on. Rows were joined by query id.

    Attributes:
        query_ids: The queries.
        targets: The targets' names.
        correctness: Predicted probabilities of a correct answer.
        cost: Estimated costs on the scale of Equation 2.
        correct: Labels in [0, 1]; NaN where not measured.
        observed_cost: US dollars; NaN where unknown.
        policy: How the choice is made of them.
        quality: Scores of the answers, for a cascade; the probabilities stand in for them if not
            given.
        domains: Benchmark and domain of each query; empty if not known.
        shared: The queries that all systems of a comparison can be compared on; None if there is
            no other system.
        runs: Of how many runs each label is the mean; None where that isn't known.
        quality: Scores of the answers, for a cascade; the policy's own scorer or the probabilities
            stand in for them if not given.
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

    @classmethod
    def join(
        cls,
        predictions: Predictions,
        dataset: RoutingDataset,
        *,
        policy: Policy | None = None,
        check: QualityCheck | None = None,
    ) -> "Trial":
        """Look up what happened on the predicted queries.

        Args:
            predictions: What is judged.
            dataset: What happened.
            policy: How the choice is made; the paper's if not given.
            check: Scores the answers, for a cascade. An answer that it can't score ends the
                cascade, so that the query is left out and not counted as wrong.

        Raises:
            DataError: The dataset lacks some of the queries, or nothing was measured on them.
            ConfigError: The dataset lacks some of the targets.
        """
        data = dataset.select(predictions.query_ids, targets=predictions.targets)
        if np.isnan(data.correct).all():
            raise DataError(
                f"none of the {len(predictions)} queries has a label; evaluate on scored answers"
            )
        chosen = policy or Lambda()
        return cls(
            predictions.query_ids,
            predictions.targets,
            predictions.correctness,
            predictions.normalised_cost,
            data.correct,
            data.observed_cost,
            chosen,
            _own_scores(chosen, predictions, data)
            if check is None
            else _scores(check, predictions, data.correct),
            domains=domains_of(data),
            runs=data.runs,
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
        """What each target's answer costs by the policy, US dollars: a cascade pays for several."""
        return self.policy.charge(self.observed_cost, self.cost, targets=self.targets)

    @cached_property
    def judged(self) -> Bool[NDArray[np.bool_], " target"]:
        """Which targets are measured on enough of the labelled queries to be compared with."""
        return well_measured(self.correct)

    @cached_property
    def compared(self) -> Bool[NDArray[np.bool_], " query"]:
        """The queries on which the outcomes of all sides are known.

        These are the outcomes of all targets that are compared with, and of all that the policy
        chooses at any setting. Router, single targets, mixes and oracle are held against each other
        on these queries alone, so that a missing label helps none of them. A cost counts as an
        outcome where the target has known costs at all.
        """
        costless = np.isnan(self.observed_cost)
        lacking = np.isnan(self.correct) | (costless & self.priced)
        needed = np.broadcast_to(self.judged, lacking.shape).copy()
        needed[self.path.query, self.path.target] = True
        compared = np.logical_not(np.any(lacking & needed, axis=1))
        return compared if self.shared is None else np.logical_and(compared, self.shared)

    @cached_property
    def priced(self) -> Bool[NDArray[np.bool_], " target"]:
        """Which targets have known costs on enough of the queries that they are measured on."""
        known = ~np.isnan(self.correct)
        both = (known & ~np.isnan(self.observed_cost)).sum(axis=0)
        priced: NDArray[np.bool_] = (both > 0) & (both >= LEAST_SHARE * known.sum(axis=0))
        return priced

    @cached_property
    def single_label(self) -> PerCell:
        """The labels of the targets that are compared with; NaN for the others."""
        return np.where(self.judged, self.correct, np.nan)

    @cached_property
    def single_cost(self) -> PerCell:
        """What the targets that are compared with cost, US dollars; NaN for the others."""
        return np.where(self.judged & self.priced, self.observed_cost, np.nan)

    @cached_property
    def best_label(self) -> PerQuery:
        """The oracle: each query's highest label over the targets measured; NaN without any."""
        label: PerQuery = np.fmax.reduce(self.correct, axis=1)
        return label

    @cached_property
    def held_out_label(self) -> PerQuery:
        """The oracle's without the luck of single runs; NaN where labels are of single ones."""
        return held_out_oracle(self.correct, self.runs)

    @cached_property
    def best_cost(self) -> PerQuery:
        """The lowest observed cost among the targets that were right; NaN without any."""
        right = binary(self.correct) == 1
        cost: PerQuery = np.fmin.reduce(np.where(right, self.observed_cost, np.nan), axis=1)
        return cost

    def of_choice(self, table: PerCell, choice: Int[NDArray[np.int64], " query"]) -> PerQuery:
        """The table's value for the chosen target of each query."""
        result: PerQuery = table[np.arange(len(self)), choice]
        return result


def _scores(check: QualityCheck, predictions: Predictions, correct: PerCell) -> PerCell:
    scores = check.scores(predictions.query_ids, predictions.targets, correct)
    return np.where(np.isnan(scores), 1, scores)


def _own_scores(policy: Policy, predictions: Predictions, data: RoutingDataset) -> PerCell | None:
    """What the policy's own scorer says of the answers; None where it has none."""
    scores = policy.scores(predictions.correctness, data.output_tokens, targets=predictions.targets)
    if scores is predictions.correctness:
        return None
    return np.where(np.isnan(data.correct), 1, scores)
