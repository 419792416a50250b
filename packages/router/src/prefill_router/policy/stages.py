"""`FrugalCascade`: a cascade whose order, thresholds and scorer are learned from train rows.

The method is FrugalGPT's (Chen, Zaharia and Zou, 2023). It searches for a list of targets, and for
the score at which each is accepted, so that answers are right most often within a budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError, FitError
from prefill_router.money import dollars, list_price
from prefill_router.policy.cascade import AnswerScorer, Cascade
from prefill_router.policy.path import PerCell
from prefill_router.serialization import Part
from prefill_router.short_repr import short_repr

Table = NDArray[np.float64]
Place = tuple[int, ...]
Knots = tuple[tuple[float, ...], ...]
_LISTS = 200  # lists of each length that are extended (beam search)
_BUDGETS = 24
_ENOUGH = 0.5
"""The least share of labelled queries on which all targets of the search were measured."""


@final
@dataclass(frozen=True)
class Stages:
    """The result of a search.

    Attributes:
        columns: The columns of the targets, in the order of the calls.
        knots: Rows of a setting from 0 to 1 and the thresholds of all stages but the last at it,
            which never decrease. The setting is the mean cost, scaled linearly from that of the
            first row (0) to that of the last (1).
        costs: Those two mean costs, US dollars per query.
        accuracies: The accuracies at both.
        at: The highest setting within the budget; None without one.
        queries: The number of queries that it was learned from.
        left_out: Targets that were measured on too few queries.
    """

    columns: tuple[int, ...]
    knots: Knots
    costs: tuple[float, float]
    accuracies: tuple[float, float]
    at: float | None
    queries: int
    left_out: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class _MeasuredQueries:
    """Queries with all labels and costs, and the candidate thresholds.

    `bins[:, k]` is the index of the highest of target k's thresholds that a score reaches.
    """

    correct: PerCell
    cost: PerCell
    thresholds: Float[NDArray[np.float64], "step target"]
    bins: Int[NDArray[np.int64], "query target"]

    @property
    def steps(self) -> int:
        return len(self.thresholds)


def search_stages(
    scores: PerCell,
    correct: PerCell,
    cost: PerCell,
    *,
    depth: int,
    budget: float | None,
    steps: int,
) -> Stages:
    """The best list of at most `depth` targets, and its thresholds.

    With a budget it is the list with the highest accuracy within it. Without one, that with the
    highest mean accuracy over budgets from the cheapest target's cost to the most expensive one's.
    Lists are compared on the same queries: those on which all targets of the search have a label
    and a cost. Targets that were measured on few queries are left out of the search if they would
    leave too few.

    Args:
        scores: Out-of-fold scores of the answers, in [0, 1].
        correct: Labels in [0, 1]; NaN where missing.
        cost: Costs of the answers, US dollars; NaN where unknown.
        depth: The most targets in a list.
        budget: Mean US dollars per query; None for all budgets.
        steps: The number of thresholds tried for each target, at quantiles of its scores.

    Raises:
        FitError: No query has a label and a cost, all answers are free, or no target is within the
            budget.
    """
    is_measured = ~np.isnan(correct) & ~np.isnan(cost)
    among = _select_targets(is_measured)
    rows = is_measured[:, among].all(axis=1)
    if not rows.any():
        raise FitError("no query has a label and a cost, so there is no cascade to learn")
    if not cost[rows].any():
        raise FitError(
            "no answer costs anything, so a cascade saves nothing; give the pool prices, or choose "
            "another policy"
        )
    cells = np.ix_(np.flatnonzero(rows), np.array(among))
    material = _measure_queries(scores[cells], correct[cells], cost[cells], steps)
    budgets = _list_budgets(material, budget)
    order = _best_list(material, depth, budgets)
    knots, ends, at = _find_knots(material, order, budget)
    return Stages(
        columns=tuple(among[k] for k in order),
        knots=knots,
        costs=(ends[0][1], ends[1][1]),
        accuracies=(ends[0][0], ends[1][0]),
        at=at,
        queries=int(rows.sum()),
        left_out=tuple(sorted(set(range(correct.shape[1])) - set(among))),
    )


def _select_targets(is_measured: NDArray[np.bool_]) -> list[int]:
    """The targets of the search: all but those that would leave too few common queries."""
    among = list(range(is_measured.shape[1]))
    enough = _ENOUGH * is_measured.any(axis=1).sum()
    while len(among) > 1 and is_measured[:, among].all(axis=1).sum() < enough:
        counts = is_measured[:, among].sum(axis=0)
        among.pop(len(counts) - 1 - int(counts[::-1].argmin()))
    return among


def _measure_queries(
    scores: PerCell, correct: PerCell, cost: PerCell, steps: int
) -> _MeasuredQueries:
    shares = np.arange(1, steps) / steps
    inner = np.quantile(scores, shares, axis=0)
    ends = np.zeros((1, scores.shape[1])), np.ones((1, scores.shape[1]))
    thresholds = np.concatenate([ends[0], inner, ends[1]])
    reached = (scores[:, None, :] >= thresholds[None]).sum(axis=1) - 1
    return _MeasuredQueries(correct, cost, thresholds, reached.astype(np.int64))


def _list_budgets(
    material: _MeasuredQueries, budget: float | None
) -> Float[NDArray[np.float64], " budget"]:
    means = material.cost.mean(axis=0)
    if budget is None:
        return np.linspace(means.min(), means.max(), _BUDGETS + 1)[1:]
    if budget < means.min():
        raise FitError(
            f"the cheapest target costs {dollars(float(means.min()))} per query, more than "
            f"the cascade's budget of {list_price(budget)}; raise the budget"
        )
    return np.array([budget])


def _best_list(
    material: _MeasuredQueries, depth: int, budgets: Float[NDArray[np.float64], " budget"]
) -> Place:
    """The best list; longer lists are made of the best shorter ones by inserting a target."""
    count = material.correct.shape[1]
    lists: list[Place] = [(k,) for k in range(count)]
    best: tuple[float, Place] = (-np.inf, (0,))
    for length in range(1, depth + 1):
        worth = [(_score_order(material, order, budgets), order) for order in lists]
        worth.sort(key=lambda pair: (-pair[0], pair[1]))
        if worth and worth[0][0] > best[0]:
            best = worth[0]
        best_orders = [order for _, order in worth[:_LISTS]]
        longer = {
            (*order[:place], k, *order[place:])
            for order in best_orders
            for place in range(length + 1)
            for k in range(count)
            if k not in order
        }
        lists = sorted(longer)
    return best[1]


def _score_order(
    material: _MeasuredQueries, order: Place, budgets: Float[NDArray[np.float64], " budget"]
) -> float:
    """The highest accuracy within a budget, averaged over the budgets; 0 where none is feasible."""
    accuracy, cost = (table.ravel() for table in outcomes(material, order))
    within = cost[None] <= budgets[:, None] * (1 + 1e-12)
    return float(np.where(within, accuracy[None], 0).max(axis=1).mean())


def outcomes(material: _MeasuredQueries, order: Sequence[int]) -> tuple[Table, Table]:
    """Mean accuracy and cost of a list, for every combination of its stages' thresholds.

    Both tables have an axis for each stage but the last, which accepts every answer.
    """
    steps, stages = material.steps, len(order) - 1
    shape = (steps,) * stages
    accuracy, cost = np.zeros(shape), np.zeros(shape)
    index = np.zeros(len(material.correct), dtype=np.int64)
    for stage, k in enumerate(order):
        paid = _sum_reached(index, material.cost[:, k], steps, stage)
        cost += paid.reshape(paid.shape + (1,) * (stages - stage))
        if stage < stages:
            index = index * steps + material.bins[:, k]
            right = _sum_cells(index, material.correct[:, k], steps, stage + 1)
            right = right[..., ::-1].cumsum(axis=-1)[..., ::-1]  # those that reach the threshold
            for axis in range(stage):
                right = right.cumsum(axis=axis) - right
        else:
            right = _sum_reached(index, material.correct[:, k], steps, stage)
        accuracy += right.reshape(right.shape + (1,) * (stages - right.ndim))
    return np.asarray(accuracy / len(index)), np.asarray(cost / len(index))


def _sum_reached(
    index: Int[NDArray[np.int64], " query"],
    values: Float[NDArray[np.float64], " query"],
    steps: int,
    stage: int,
) -> Table:
    """The sum over the queries that reach a stage: below all thresholds before it."""
    cells = _sum_cells(index, values, steps, stage)
    for axis in range(stage):
        cells = cells.cumsum(axis=axis) - cells
    return cells


def _sum_cells(
    index: Int[NDArray[np.int64], " query"],
    values: Float[NDArray[np.float64], " query"],
    steps: int,
    stages: int,
) -> Table:
    """The sum over the queries of each combination of bins, an axis for each stage."""
    cells = np.bincount(index, values, steps**stages).astype(np.float64)
    return cells.reshape((steps,) * stages)


def _find_knots(
    material: _MeasuredQueries, order: Place, budget: float | None
) -> tuple[Knots, tuple[tuple[float, float], tuple[float, float]], float | None]:
    """The path from accepting every first answer, over the best within budget, to the best."""
    accuracy, cost = outcomes(material, order)
    start = (0,) * accuracy.ndim
    places, within = [start], start
    if budget is not None:
        within = _find_best_place(np.where(cost <= budget * (1 + 1e-12), accuracy, -1), cost, start)
        places += _find_path(accuracy, cost, start, within)
    places += _find_path(accuracy, cost, within, _find_best_place(accuracy, cost, within))
    low, high = float(cost[places[0]]), float(cost[places[-1]])
    rows = {0.0: start}
    for place in places:
        if cost[place] > low:  # of several with the same cost, the last is kept
            rows[(float(cost[place]) - low) / (high - low)] = place
    rows[1.0] = places[-1]
    knots = tuple(
        (at, *(float(material.thresholds[i, k]) for i, k in zip(place, order, strict=False)))
        for at, place in sorted(rows.items())
    )
    ends = ((float(accuracy[places[0]]), low), (float(accuracy[places[-1]]), high))
    at = (
        None
        if budget is None
        else max(a for a, place in rows.items() if cost[place] <= cost[within])
    )
    return knots, ends, at


def _find_best_place(accuracy: Table, cost: Table, least: Place) -> Place:
    """The most accurate place with no threshold below `least`; ties go to the cheapest."""
    part = tuple(slice(i, None) for i in least)
    flat, paid = accuracy[part].ravel(), cost[part].ravel()
    best = int(np.lexsort((paid, -flat))[0])
    inner = np.unravel_index(best, accuracy[part].shape)
    return tuple(int(i) + j for i, j in zip(inner, least, strict=True))


def _find_path(accuracy: Table, cost: Table, start: Place, end: Place) -> list[Place]:
    """The path between two places with the greatest gain per dollar; thresholds never decrease."""
    path, here = list[Place](), start
    while here != end:
        next_places = [
            (*here[:axis], i, *here[axis + 1 :])
            for axis in range(len(here))
            for i in range(here[axis] + 1, end[axis] + 1)
        ]
        gain = np.array([accuracy[place] - accuracy[here] for place in next_places])
        extra = np.array([max(cost[place] - cost[here], 1e-300) for place in next_places])
        steepest = int((gain / extra).argmax())
        here = next_places[steepest] if gain[steepest] > 0 else end
        path.append(here)
    return path


@short_repr
@final
@dataclass(frozen=True)
class FrugalFit:
    """A learned cascade, with notes on it.

    Attributes:
        policy: The learned cascade.
        notes: Notes for the user.
    """

    policy: Cascade
    notes: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class FrugalCascade(Part):
    """The options of a cascade to be learned.

    Attributes:
        depth: The most targets that are called for a query.
        budget: Mean US dollars per query for which order and thresholds are optimised; None to
            optimise the mean over all budgets.
        steps: The number of thresholds that are tried for each target.
        folds: The number of folds of the out-of-fold predictions.

    Raises:
        ConfigError: An option is invalid.
    """

    kind: ClassVar[str] = "frugal_cascade"
    noun: ClassVar[str] = "policy"
    depth: int = 3
    budget: float | None = None
    steps: int = 20
    folds: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 4:
            raise ConfigError(f"depth is {self.depth}; a cascade can have 1 to 4 targets")
        if not 2 <= self.steps <= 50 or not 2 <= self.folds <= 20:
            raise ConfigError(
                f"steps is {self.steps} and folds {self.folds}; give 2 to 50, and 2 to 20"
            )
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise ConfigError(f"budget is {self.budget}; it must be positive, US dollars per query")

    def fit(
        self,
        correctness: PerCell,
        correct: PerCell,
        cost: PerCell,
        tokens: PerCell,
        folds: Int[NDArray[np.int64], " query"],
        *,
        targets: tuple[str, ...],
    ) -> FrugalFit:
        """Learn a cascade from train rows.

        Args:
            correctness: Out-of-fold predictions.
            correct: Labels in [0, 1]; NaN where missing.
            cost: Costs of the answers, US dollars; NaN where unknown.
            tokens: Output tokens of the answers; NaN where unknown.
            folds: The fold of each row; its answers are scored by a scorer fitted on the others.
            targets: The names of the columns.

        Raises:
            FitError: No query has a label and a cost, all answers are free, or no target is within
                the budget.
        """
        scores = np.empty(correctness.shape)
        for fold in np.unique(folds).tolist():
            is_scored, is_fitted = folds == fold, folds != fold
            scorer = AnswerScorer.fit(
                correctness[is_fitted], tokens[is_fitted], correct[is_fitted], targets=targets
            )
            scores[is_scored] = scorer.scores(
                correctness[is_scored], tokens[is_scored], targets=targets
            )
        stages = search_stages(
            scores, correct, cost, depth=self.depth, budget=self.budget, steps=self.steps
        )
        scorer = AnswerScorer.fit(correctness, tokens, correct, targets=targets)
        names = tuple(targets[k] for k in stages.columns)
        policy = Cascade(targets=names, knots=stages.knots, scorer=scorer)
        return FrugalFit(policy, _list_notes(stages, names, targets))


def _list_notes(
    stages: Stages, names: tuple[str, ...], targets: tuple[str, ...]
) -> tuple[str, ...]:
    low, high = stages.costs
    notes = [
        f"the cascade calls {', then '.join(names)}; on {stages.queries:,} train queries it was "
        f"right on {stages.accuracies[0]:.1%} for {dollars(float(low))} a query at lam = 0, and on "
        f"{stages.accuracies[1]:.1%} for {dollars(float(high))} at lam = 1"
    ]
    if stages.at is not None:
        notes.append(f"it is within its budget at lam = {stages.at:.3f} and below")
    if stages.left_out:
        lacking = ", ".join(targets[k] for k in stages.left_out)
        notes.append(f"the cascade leaves out {lacking}, measured on too few of the same queries")
    return tuple(notes)
