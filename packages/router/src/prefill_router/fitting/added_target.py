"""Adds a target to a fitted router from few labels, and removes one.

What is learned of a target that joins, and the questions that are chosen for it, depend on train
rows alone.

Its log-odds z are a linear function of the fitted targets' (`router.PoolChanges`). Before any label
the weights have a normal prior. Its mean is the mean of the others' log-odds. By its covariance,
the new target differs from that mean as the others do from each other. Labels give the posterior by
Laplace's approximation. On a train row the others' answers are known, and tell how much harder it
was than predicted. With e the mean over the others of label minus probability, the label y of the
new target is modelled as

    logit p(y) = slope * z + surprise * e

where `slope` and `surprise` are those that the fitted targets have with respect to each other. So
the labels are freed of most of the noise that targets share.

Where the new target is another effort of a model that the router was fitted for, its siblings take
the place of the others: the prior mean is the mean of their log-odds, and e is theirs.

Questions are chosen one after another. Each is the one that takes most off the posterior variance
of the predicted log-odds over the train rows, weighted by p(1 - p) (V-optimal design).
docs/decisions/0022-adding-targets.md has what it reaches.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol, final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import PoolChanges, Router, TargetHead, head_inputs, shared_output
from prefill_router.short_repr import short_repr
from prefill_router.statistics import sigmoid
from prefill_router.targets import Pool

Inputs = Float64[NDArray[np.float64], "row column"]
Column = Float64[NDArray[np.float64], " _"]
Rows = Int64[NDArray[np.int64], " _"]
Weights = Float64[NDArray[np.float64], " column"]
Matrix = Float64[NDArray[np.float64], "column column"]
Table = Float64[NDArray[np.float64], "row target"]
_INTERCEPT, _SLOPE, _DIFFERENCE = 0.05, 0.01, 1.0
"""Prior variances of the weights of `head_inputs`, the last divided among the targets; confirmed on
train rows of MMLU-Pro, each target in turn as the new one."""
_SIBLING_DIFFERENCE = 0.03
"""The last where the others are other efforts of the same model, which differ less."""
_STEPS = 25
_LEAST_SHARE = 1e-6
"""The least part of a Newton step; a whole one may lead away from the optimum."""
_FLAT = 1e-4  # the least p (1 - p) of a row in Newton's steps


@short_repr
@final
@dataclass(frozen=True, eq=False)
class HeadPrior:
    """What is known of the train rows before the new target is asked.

    Attributes:
        inputs: The inputs of a head.
        surprise: How much better the fitted targets did than was predicted, times its weight.
        slope: How much steeper the log-odds are where the surprise is known.
        precision: The prior precisions of the weights.
        prior: The prior mean of the weights: the mean log-odds of the others, or of the siblings.
    """

    inputs: Inputs
    surprise: Column
    slope: float
    precision: Weights
    prior: Weights

    @classmethod
    def of(cls, correctness: Table, correct: Table, *, siblings: Sequence[int] = ()) -> "HeadPrior":
        """The prior.

        Args:
            correctness: The fitted targets' probabilities.
            correct: Their labels; NaN where missing.
            siblings: The columns of the other efforts of the new target's model.
        """
        inputs, is_labelled = head_inputs(correctness), ~np.isnan(correct)
        residual = np.where(is_labelled, correct - correctness, 0)
        count = correctness.shape[1]
        near = list(siblings) or list(range(count))
        others = _mean_of_others(residual, near)
        odds = inputs[:, 2:] + inputs[:, 1:2]
        usable = is_labelled.copy()
        if len(near) > 1:
            usable[:, np.setdiff1d(np.arange(count), near)] = False
        slope, surprise = _fit_logistic(
            np.column_stack([odds[usable], others[usable]]),
            correct[usable],
            offset=0.0,
            prior=np.array([1.0, 0.0]),
            precision=np.ones(2),
        )[0]
        difference = _SIBLING_DIFFERENCE if siblings else _DIFFERENCE
        variances = [_INTERCEPT, _SLOPE, *[difference / count] * count]
        return cls(
            inputs,
            surprise * residual[:, near].mean(axis=1),
            max(float(slope), 0.1),
            1 / np.array(variances),
            _prior_mean(count, siblings),
        )

    def posterior(self, rows: Rows, labels: Column) -> tuple[Weights, Matrix]:
        """The mean and covariance of the weights after these labels; NaN is left out."""
        there = ~np.isnan(labels)
        weights, precision = _fit_logistic(
            self.slope * self.inputs[rows[there]],
            labels[there],
            offset=self.surprise[rows[there]],
            prior=self.prior,
            precision=self.precision,
        )
        return weights, np.linalg.inv(precision).astype(np.float64)

    def choose(
        self,
        open_rows: Rows,
        count: int,
        posterior: tuple[Weights, Matrix],
    ) -> Rows:
        """The questions that take most off the variance of the predictions, one after another."""
        weights, covariance = posterior
        chances = sigmoid(self.inputs @ weights)
        matters = (self.inputs.T * (chances * (1 - chances))) @ self.inputs / len(self.inputs)
        rows = self.slope * self.inputs[open_rows]
        mean_chances = sigmoid(
            (rows @ weights + self.surprise[open_rows])
            / np.sqrt(1 + np.pi / 8 * ((rows @ covariance) * rows).sum(axis=1))
        )
        noise = 1 / np.maximum(mean_chances * (1 - mean_chances), _FLAT)
        left, chosen = np.ones(len(rows), dtype=np.bool_), []
        for _ in range(count):
            reach = rows @ covariance
            gain = ((reach @ matters) * reach).sum(axis=1) / (noise + (reach * rows).sum(axis=1))
            best = int(np.where(left, gain, -1).argmax())
            left[best] = False
            chosen.append(best)
            scale = noise[best] + reach[best] @ rows[best]
            covariance = covariance - np.outer(reach[best], reach[best]) / scale
        return open_rows[chosen]


def _mean_of_others(residual: Table, near: Sequence[int]) -> Table:
    """For each target, the mean residual of the others among `near`, or of all others."""
    among = np.zeros(residual.shape[1])
    among[near if len(near) > 1 else slice(None)] = 1.0
    counts = np.maximum(among.sum() - among, 1)
    total = residual @ among
    means: Table = (total[:, None] - residual * among) / counts
    return means


def _prior_mean(count: int, siblings: Sequence[int]) -> Weights:
    """The weights of `head_inputs` that give the mean log-odds of all, or of the siblings."""
    mean = np.zeros(count + 2)
    mean[1] = 1.0
    if siblings:
        mean[[2 + place for place in siblings]] = 1 / len(siblings)
    return mean


def _fit_logistic(
    rows: Inputs,
    labels: Column,
    *,
    offset: Column | float,
    prior: Weights,
    precision: Weights,
) -> tuple[Weights, Matrix]:
    """The weights with the greatest posterior probability, and the precision there."""

    def loss(weights: Weights) -> float:
        """The negative logarithm of the posterior probability, without a constant."""
        odds, away = rows @ weights + offset, weights - prior
        return float((np.logaddexp(0, odds) - labels * odds).sum() + precision @ away**2 / 2)

    weights, curvature = prior, np.diag(precision)
    for _ in range(_STEPS):
        chances = sigmoid(rows @ weights + offset)
        flat = np.maximum(chances * (1 - chances), _FLAT)
        curvature = (rows.T * flat) @ rows + np.diag(precision)
        downhill = rows.T @ (labels - chances) - precision * (weights - prior)
        step = np.linalg.solve(curvature, downhill)
        share = 1 / max(1.0, float(np.abs(step).max()))
        while share > _LEAST_SHARE and loss(weights + share * step) > loss(weights):
            share /= 2
        weights = weights + share * step
    return weights, curvature


Ask = Callable[[Sequence[str]], RoutingDataset]
"""From the ids of all questions chosen so far to the new target's answers to some of them."""


class Questions(Protocol):
    """Asks a target the questions of these ids, and returns its graded answers.

    Attributes:
        ids: The ids of the queries that it can ask.
        spent: US dollars spent so far; None before the first question.
    """

    @property
    def ids(self) -> Collection[str]: ...  # noqa: D102
    @property
    def spent(self) -> float | None: ...  # noqa: D102
    def __call__(self, ids: Sequence[str]) -> RoutingDataset: ...  # noqa: D102


CAUTION: Final = 0.5
"""The standard deviations by which the log-odds of an added target are lowered by default."""
ROUNDS: Final = 8


@short_repr
@final
@dataclass(frozen=True)
class AddedTarget:
    """A router with one more target.

    Attributes:
        router: The router.
        questions: The ids of the questions that were chosen, in order.
        answered: How many of them have a label.
    """

    router: Router
    questions: tuple[str, ...]
    answered: int


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TargetAddition:
    """What adding targets needs of a router's train rows; made by `of`, once for all of them.

    Attributes:
        router: The fitted router.
        train: Its train rows, with the answers of the targets that it was fitted for.
        correctness: The router's probabilities of these targets.
        tokens: The encoder's token count of each row.
        output: The output that the targets share, see `shared_output`; NaN where unknown.
    """

    router: Router
    train: RoutingDataset
    correctness: Float64[NDArray[np.float64], "row target"]
    tokens: Int64[NDArray[np.int64], " row"]
    output: Float64[NDArray[np.float64], " row"]

    @classmethod
    def of(
        cls,
        router: Router,
        dataset: RoutingDataset,
        *,
        stores: Sequence[Activations] = (),
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> "TargetAddition":
        """Predict the train rows; the arguments are those of `add_target`."""
        train = _train_rows(router, dataset)
        features, tokens = router.read(train, stores=stores, cache=cache, progress=progress)
        fitted = router.calibrate_fitted(router.predictor.correctness(features))
        head, nothing = router.output, np.full(len(train), np.nan)
        output = nothing if head is None else shared_output(head.expect(features, tokens).mean)
        return cls(router, train, fitted, tokens, output)

    def add(
        self,
        new: Pool,
        ask: Ask,
        *,
        labels: int,
        candidates: Collection[str] | None = None,
        caution: float = CAUTION,
        progress: Progress | None = None,
    ) -> AddedTarget:
        """The router with one more target; the arguments are those of `add_target`."""
        _check_addition(self.router, new, labels, caution)
        siblings = _find_siblings(self.router, new)
        prior = HeadPrior.of(self.correctness, self.train.correct, siblings=siblings)
        open_rows, progress = (
            _open_rows(self.train, candidates, labels),
            progress or SilentProgress(),
        )
        answers, questions = _ask_in_rounds(
            prior, open_rows, self.train, new.names[0], ask, labels, progress
        )
        weights, covariance = prior.posterior(answers.rows, answers.correct)
        count = int((~np.isnan(answers.correct)).sum())
        head = TargetHead(weights, covariance, caution, count, answers.ratio(self.output))
        rate = float(sigmoid(prior.inputs @ weights).mean())
        return AddedTarget(_join_target(self, new, head, answers, rate), questions, count)


def add_target(
    router: Router,
    new: Pool,
    dataset: RoutingDataset,
    ask: Ask,
    *,
    labels: int,
    stores: Sequence[Activations] = (),
    candidates: Collection[str] | None = None,
    caution: float = CAUTION,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> AddedTarget:
    """Choose questions, ask them, and learn the new target from its labels.

    The numbers of the other targets don't change. The metrics of the record, which are those of
    the old pool, are removed, and a note says so.

    Args:
        router: The fitted router.
        new: A pool of the new target alone, with prices.
        dataset: The answers of the router's targets, as it was fitted on; only train rows are used.
        ask: Returns the new target's answers to questions; called with more of them each round.
        labels: The number of questions to choose.
        stores: Stores of states of these queries; what is missing is encoded.
        candidates: The ids to choose from; all train rows if not given.
        caution: The standard deviations by which the log-odds are lowered.
        cache: The folder for states that are encoded now; in memory if not given.
        progress: Shows the progress.

    Raises:
        ConfigError: The name is taken, an option is out of range, or costs can't be estimated.
        DataError: The dataset lacks train rows or targets of the router, or too few questions.
    """
    _check_addition(router, new, labels, caution)
    rows = TargetAddition.of(router, dataset, stores=stores, cache=cache, progress=progress)
    return rows.add(
        new, ask, labels=labels, candidates=candidates, caution=caution, progress=progress
    )


def known_answers(dataset: RoutingDataset, name: str) -> Ask:
    """Asks nobody: the answers of one target are taken from a dataset.

    Raises:
        ConfigError: The dataset has no such target.
    """
    answers = dataset.select(targets=[name])
    there = set(dataset.query_ids)
    return lambda ids: answers.select([query_id for query_id in ids if query_id in there])


def remove_target(router: Router, name: str) -> Router:
    """The router without one of its targets; the numbers of the others don't change.

    Where it was the cheapest or the most expensive, the scale of costs changes, and with it the
    meaning of lam.

    Raises:
        ConfigError: The router has no such target, or would have none that it was fitted for.
    """
    place = router.pool.indices([name])[0]
    changes = _pool_changes(router).without(name)
    if not changes.remaining_places or len(changes.targets) < 2:
        raise ConfigError(
            f"target {name!r} can't be removed: the router needs at least two "
            "targets, and one that it was fitted for"
        )
    reference = router.reference
    if reference is not None:
        reference = replace(reference, accuracy=np.delete(reference.accuracy, place))
    return replace(
        router,
        changes=changes,
        costs=router.costs.select(changes.targets),
        reference=reference,
        record=router.record.drop_measurements(f"{name} was removed"),
        cross_fit=None,
    )


class _Answers(NamedTuple):
    """The new target's answers: rows of the train part, labels, and what they cost."""

    rows: Rows
    correct: Column
    output_tokens: Column
    input_tokens: Column
    recorded_cost: Column

    def ratio(self, shared: Column) -> float | None:
        """Its output tokens for one of the others' shared output, over all its answers."""
        there = ~np.isnan(self.output_tokens) & ~np.isnan(shared[self.rows])
        total = float(shared[self.rows][there].sum())
        own = float(self.output_tokens[there].sum())
        return own / total if total > 0 and own > 0 else None


def _ask_in_rounds(
    prior: HeadPrior,
    open_rows: Rows,
    train: RoutingDataset,
    name: str,
    ask: Ask,
    labels: int,
    progress: Progress,
) -> tuple[_Answers, tuple[str, ...]]:
    """The answers to questions that are chosen in rounds, the first ones small."""
    empty = np.zeros(0)
    chosen, answers = (
        np.zeros(0, dtype=np.int64),
        _Answers(np.zeros(0, dtype=np.int64), *[empty] * 4),
    )
    ends = np.unique(np.ceil(labels * (np.arange(1, ROUNDS + 1) / ROUNDS) ** 1.5).astype(np.int64))
    with progress.task("questions", total=float(labels)) as advance:
        for end in ends[ends > 0]:
            before = len(chosen)
            posterior = prior.posterior(answers.rows, answers.correct)
            rows = prior.choose(np.setdiff1d(open_rows, chosen), int(end) - before, posterior)
            chosen, answered = np.concatenate([chosen, rows]), len(answers.rows)
            labelled = ask([train.query_ids[row] for row in chosen.tolist()])
            answers = _select_answers(labelled, train, name)
            advance(float(len(chosen) - before))
            if len(answers.rows) == answered:  # the budget is spent, or the target doesn't answer
                break
    return answers, tuple(train.query_ids[row] for row in chosen.tolist())


def _select_answers(labelled: RoutingDataset, train: RoutingDataset, name: str) -> _Answers:
    labelled = labelled.select(targets=[name])
    tables = (
        labelled.correct,
        labelled.output_tokens,
        labelled.input_tokens,
        labelled.recorded_cost,
    )
    return _Answers(
        np.array(train.rows(labelled.query_ids), dtype=np.int64), *(t[:, 0] for t in tables)
    )


def _check_addition(router: Router, new: Pool, labels: int, caution: float) -> None:
    if router.is_voted:
        raise ConfigError(
            "the router learned from votes, and a target joins by labels that say how good each "
            "answer is; fit it again with votes on the new target"
        )
    if len(new) != 1:
        raise ConfigError(f"one target is added at a time; the pool has {new.names}")
    names = {*router.pool.names, *router.fitted_targets}
    if new.names[0] in names:
        raise ConfigError(
            f"the router knows {new.names[0]!r} already; give the target another name"
        )
    if labels < 0 or not (0 <= caution < math.inf):
        raise ConfigError(
            f"there are {labels} labels and the caution is {caution}; both must be 0 or more"
        )


def _find_siblings(router: Router, new: Pool) -> list[int]:
    """The columns of the fitted targets that are other efforts of the new target's model."""
    (target,) = new
    if target.effort is None:
        return []
    names = router.fitted_targets
    own = {t.name for t in router.pool if t.effort is not None and t.base == target.base}
    return [place for place, name in enumerate(names) if name in own]


def _train_rows(router: Router, dataset: RoutingDataset) -> RoutingDataset:
    lacking = sorted(set(router.fitted_targets) - set(dataset.pool.names))
    if lacking:
        raise DataError(
            f"the dataset lacks the answers of {lacking}; give the one that it was fitted on"
        )
    return dataset.select(router.split["train"], targets=router.fitted_targets)


def _open_rows(train: RoutingDataset, among: Collection[str] | None, labels: int) -> Rows:
    """The rows that may be asked; of equal prompts only the first."""
    wanted = set(train.query_ids if among is None else among)
    first = dict(zip(reversed(train.prompt_keys), reversed(range(len(train))), strict=True))
    rows = [row for row in sorted(first.values()) if train.query_ids[row] in wanted]
    if len(rows) < labels:
        raise DataError(
            f"{labels} questions were requested, but only {len(rows)} train queries can be "
            "asked; ask for fewer, or give more tasks"
        )
    return np.array(rows, dtype=np.int64)


def _pool_changes(router: Router) -> PoolChanges:
    return router.changes or PoolChanges.none(router.pool.names)


def _join_target(
    before: TargetAddition, new: Pool, head: TargetHead, answers: _Answers, rate: float
) -> Router:
    """The router with the new target's head, costs and rate."""
    router = before.router
    old, reference = router.pool, router.reference
    providers = {provider.name: provider for provider in (*new.providers, *old.providers)}
    pool = Pool((*old.targets, *new.targets), old.prices_date, tuple(providers.values()))
    ratio = _known_median(answers.input_tokens / np.maximum(before.tokens[answers.rows], 1))
    median = _known_median(answers.output_tokens)
    if math.isnan(median):
        median = _known_median(router.costs.median_output)
    if reference is not None:
        reference = replace(reference, accuracy=np.append(reference.accuracy, rate))
    return replace(
        router,
        changes=_pool_changes(router).with_head(new.names[0], head),
        costs=router.costs.with_target(
            pool,
            median_output=median,
            token_ratio=1.0 if math.isnan(ratio) else ratio,
            fixed=_known_median(answers.recorded_cost),
        ),
        reference=reference,
        record=router.record.drop_measurements(
            f"{new.names[0]} was added with {head.labels} labels"
        ),
        cross_fit=None,
    )


def _known_median(values: Column) -> float:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else math.nan
