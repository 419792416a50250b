"""The study of robustness: a router's decisions on queries, and on the same queries perturbed.

RouterArena's robustness is 1 - flips / matches: the share of the queries, among those asked in both
ways, that go to the same target (`global_utils/robustness.py` of its repository). A router that
sends everything to one target has 1 by that, so the share that would stay by chance is beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import DataError
from prefill_router.evaluation import Bootstrap, Estimate, Trial, mean_over
from prefill_router.policy import Predictions, check_lam
from prefill_router.progress import Progress
from prefill_router.reporting import ends, flat
from prefill_router.robustness.perturbations import Kind
from prefill_router.router import Router, refuse_cascade
from prefill_router.short_repr import short_repr

Choice = Int[NDArray[np.int64], " query"]
PerQuery = Float[NDArray[np.float64], " query"]
PerCell = Float[NDArray[np.float64], "query target"]


def predict_prompts(
    router: Router,
    queries: Sequence[Query],
    *,
    stores: Sequence[Activations] = (),
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Predictions:
    """A router's predictions for requests of which only the prompt is known.

    The arguments are those of `Router.predict`.
    """
    unknown = np.full((len(queries), len(router.pool)), np.nan)
    requests = RoutingDataset.of(queries, router.pool, unknown)
    return router.predict(requests, stores=stores, cache=cache, progress=progress)


def choose_targets(router: Router, predictions: Predictions, lam: float) -> Choice:
    """The column of each query's target.

    Raises:
        ConfigError: The router is a cascade, which decides by answers.
    """
    refuse_cascade(router.policy)
    table, cost = predictions.correctness, predictions.normalised_cost
    return router.policy.path(table, cost, targets=predictions.targets).at(check_lam(lam))


@final
@dataclass(frozen=True)
class KindResult:
    """What one kind of perturbation changes.

    Attributes:
        kind: The kind.
        queries: Number of queries whose prompts it changes; only these count.
        labelled: Number of those on which the labels of both choices are known.
        kept_share: The share of the decisions that stay.
        by_chance: The share that would stay if the decisions of both sides, each as frequent as
            here, had nothing to do with each other.
        moved: Mean absolute change of the probabilities, over queries and targets.
        accuracy: Accuracy of the perturbed choices minus that of the original ones, by the labels
            of the original prompts.
        cost: The same of observed costs, US dollars per query.
    """

    kind: Kind
    queries: int
    labelled: int
    kept_share: Estimate
    by_chance: float
    moved: Estimate
    accuracy: Estimate
    cost: Estimate

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The estimates by name."""
        return {
            "kept": self.kept_share,
            "moved": self.moved,
            "accuracy": self.accuracy,
            "cost": self.cost,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        counts = {"queries": self.queries, "labelled": self.labelled, "by_chance": self.by_chance}
        return counts | {name: estimate.to_dict() for name, estimate in self.numbers.items()}


@final
@short_repr
@dataclass(frozen=True)
class RobustnessStudy:
    """A router's robustness at one lam.

    Attributes:
        lam: The trade-off between accuracy and cost.
        queries: Number of queries.
        shares: The share of the queries that each target gets, where it gets any.
        kinds: One for each kind that changes any prompt.
        unchanged: The kinds that change none.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the perturbations and the resamples.
    """

    lam: float
    queries: int
    shares: Mapping[str, float]
    kinds: tuple[KindResult, ...]
    unchanged: tuple[Kind, ...]
    resamples: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "lam": self.lam,
            "queries": self.queries,
            "shares": dict(self.shares),
            "kinds": {kind.kind: kind.to_dict() for kind in self.kinds},
            "unchanged": list(self.unchanged),
            "resamples": self.resamples,
            "seed": self.seed,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per kind."""
        return [
            {
                "kind": kind.kind,
                "queries": kind.queries,
                "labelled": kind.labelled,
                "by_chance": kind.by_chance,
                **flat(kind.numbers),
            }
            for kind in self.kinds
        ]

    def figure_rows(self) -> list[dict[str, Any]]:
        """What the figure shows: one row per kind and number."""
        return [
            {"kind": kind.kind, "number": name, **ends(number)}
            for kind in self.kinds
            for name, number in (
                ("kept", kind.kept_share),
                ("by_chance", Estimate(kind.by_chance, math.nan, math.nan)),
                ("accuracy", kind.accuracy),
            )
        ]


def robustness_study(
    router: Router,
    dataset: RoutingDataset,
    versions: Mapping[Kind, Sequence[Query]],
    *,
    lam: float,
    stores: Sequence[Activations] = (),
    cache: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> RobustnessStudy:
    """Decide for queries and for perturbed versions of them, and compare.

    Both are decided as for new requests: prompts are as long as the encoder counts, whatever the
    dataset knows of their tokens. Labels and costs are those of the original prompts, and are
    taken to hold for the perturbed ones; a missing one is left out.

    Args:
        router: The router; not a cascade.
        dataset: Queries that it wasn't fitted on, with its targets; labels may be missing.
        versions: The perturbed queries of each kind, under the ids of the dataset's.
        lam: The trade-off between accuracy and cost.
        stores: Stores of states; what they lack is encoded now.
        cache: The folder for states that are encoded now; in memory if not given.
        resamples: Bootstrap resamples over the queries.
        seed: Random seed of the resamples.
        progress: Reports the progress of encoding.

    Raises:
        ConfigError: The router is a cascade, or lam is outside [0, 1].
        DataError: The dataset lacks a query or a target, or no kind changes a prompt.
    """
    judged = dataset.select(targets=router.pool.names)
    before = predict_prompts(router, judged.queries, stores=stores, cache=cache, progress=progress)
    first = choose_targets(router, before, lam)
    outcomes = _Outcomes.of(router, judged, before)
    results, unchanged_kinds = list[KindResult](), list[Kind]()
    for kind, queries in versions.items():
        if not queries:
            unchanged_kinds.append(kind)
            continue
        rows = np.array(judged.rows(query.id for query in queries))
        after = predict_prompts(router, queries, stores=stores, cache=cache, progress=progress)
        pair = first[rows], choose_targets(router, after, lam)
        turns = (
            None if judged.conversations is None else [judged.conversations[row] for row in rows]
        )
        bootstrap = Bootstrap(len(rows), resamples, seed, len(rows), turns)
        moved = np.abs(after.correctness - before.correctness[rows]).mean(axis=1)
        results.append(outcomes.compare(kind, rows, pair, moved, bootstrap))
    if not results:
        raise DataError(f"no prompt is changed by {', '.join(unchanged_kinds)}; give --paraphrases")
    counts = np.bincount(first, minlength=len(router.pool)) / len(first)
    shares = {n: float(s) for n, s in zip(router.pool.names, counts, strict=True) if s}
    size = len(judged)
    return RobustnessStudy(
        lam, size, shares, tuple(results), tuple(unchanged_kinds), resamples, seed
    )


@final
@dataclass(frozen=True, eq=False)
class _Outcomes:
    """Labels and observed costs of the original prompts, US dollars; NaN where unknown."""

    label: PerCell
    cost: PerCell
    trial: Trial | None

    @classmethod
    def of(cls, router: Router, dataset: RoutingDataset, before: Predictions) -> "_Outcomes":
        if np.isnan(dataset.correct).all():
            return cls(dataset.correct, dataset.observed_cost, None)
        trial = Trial.join(before, dataset, policy=router.policy)
        return cls(trial.correct, trial.paid, trial)

    def compare(
        self,
        kind: Kind,
        rows: NDArray[np.int64],
        pair: tuple[Choice, Choice],
        moved: PerQuery,
        bootstrap: Bootstrap,
    ) -> KindResult:
        """What changes on these rows if the second choice is made instead of the first."""
        first, second = pair
        label_change, cost_change = (
            t[rows, second] - t[rows, first] for t in (self.label, self.cost)
        )
        refusal = self._explain_refusal(rows, pair)
        if refusal:
            label_change, cost_change = np.full((2, len(rows)), np.nan)
        count = self.label.shape[1]
        shares = [np.bincount(choices, minlength=count) / len(rows) for choices in pair]
        label, cost = (
            refusal or f"the {what} of both choices are known on no query"
            for what in ("labels", "costs")
        )
        return KindResult(
            kind,
            len(rows),
            int((~np.isnan(label_change)).sum()),
            _estimate_mean(bootstrap, (first == second).astype(np.float64)),
            float(shares[0] @ shares[1]),
            _estimate_mean(bootstrap, moved),
            _estimate_mean(bootstrap, label_change, label),
            _estimate_mean(bootstrap, cost_change, cost),
        )

    def _explain_refusal(self, rows: NDArray[np.int64], pair: tuple[Choice, Choice]) -> str:
        """Why labels that chance selected can't tell; empty where they can."""
        if self.trial is None:
            return ""
        path = [np.array(self.trial.path.at(0)) for _ in pair]
        for choice, choices in zip(path, pair, strict=True):
            choice[rows] = choices
        overlap = self.trial.overlap_of(path)
        return "" if overlap is None else overlap.refusal


def _estimate_mean(bootstrap: Bootstrap, values: PerQuery, reason: str = "") -> Estimate:
    return bootstrap.estimate(lambda weights: mean_over(weights, values), reason)
