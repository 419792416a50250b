"""What makes a cascade FrugalGPT's: order, thresholds and scorer are learned within a budget."""

import json
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prefill_router.errors import ConfigError, CorruptError, FitError
from prefill_router.policy import AnswerScorer, Cascade, FrugalCascade, Lambda, Policy, from_dict
from prefill_router.policy.stages import search_stages

pytestmark = pytest.mark.slow

Array = NDArray[Any]
NAMES = ("cheap", "loud", "middle", "dear")
COST = np.array([0.01, 0.02, 0.1, 1.0])


def draw_tables(rows: int = 3000, *, seed: int = 0) -> tuple[Array, Array, Array]:
    """Scores, labels and costs.

    `cheap` and `middle` know when they are wrong, each on a scale of its own; `loud` is seldom
    right and always sure of itself; `dear` is right nine times in ten.
    """
    random = np.random.default_rng(seed)
    correct = (random.random((rows, 4)) < [0.5, 0.2, 0.6, 0.9]).astype(np.float64)
    knows = np.clip(0.6 * correct + 0.4 * random.random((rows, 4)), 0, 1)
    scores = np.stack(
        [
            0.2 * knows[:, 0],
            0.8 + 0.2 * random.random(rows),
            0.7 + 0.3 * knows[:, 2],
            random.random(rows),
        ],
        axis=1,
    )
    return scores, correct, COST * (0.5 + random.random((rows, 4)))


def judge_policy(
    policy: Policy, at: float, data: tuple[Array, Array, Array]
) -> tuple[float, float]:
    """The accuracy and the cost of a policy at one setting."""
    scores, correct, cost = data
    choice = policy.choose(scores, np.tile(COST, (len(scores), 1)), at, targets=NAMES)
    paid = policy.charge(cost, np.tile(COST, (len(scores), 1)), targets=NAMES)
    rows = np.arange(len(scores))
    return float(correct[rows, choice].mean()), float(paid[rows, choice].mean())


def best_accuracy(policy: Policy, budget: float, data: tuple[Array, Array, Array]) -> float:
    """The best accuracy of all settings within a budget."""
    points = [judge_policy(policy, at, data) for at in np.linspace(0, 1, 201).tolist()]
    return max((accuracy for accuracy, cost in points if cost <= budget), default=0.0)


def learn_cascade(budget: float | None = None) -> Cascade:
    data = draw_tables()
    stages = search_stages(*data, depth=3, budget=budget, steps=20)
    return Cascade(targets=tuple(NAMES[k] for k in stages.columns), knots=stages.knots)


def test_learned_order_and_thresholds_beat_those_that_are_not() -> None:
    unseen, cascade = draw_tables(seed=1), learn_cascade()
    assert cascade.targets == ("cheap", "middle", "dear")
    single = replace(cascade, knots=())  # the same order, one threshold for all
    for budget in (0.1, 0.3, 0.5):
        by_cost = best_accuracy(Cascade(), budget, unseen)
        assert best_accuracy(cascade, budget, unseen) > by_cost + 0.2, budget
        assert (
            best_accuracy(cascade, budget, unseen) > best_accuracy(single, budget, unseen) + 0.02
        ), budget


@pytest.mark.parametrize("budget", [0.05, 0.2, 0.45])
def test_no_list_is_better_within_the_budget(budget: float) -> None:
    scores, correct, cost = (table[:300] for table in draw_tables())
    stages = search_stages(scores, correct, cost, depth=2, budget=budget, steps=5)
    policy = Cascade(targets=tuple(NAMES[k] for k in stages.columns), knots=stages.knots)
    assert stages.at is not None
    accuracy, paid = judge_policy(policy, stages.at, (scores, correct, cost))
    assert paid <= budget * (1 + 1e-9)
    best = 0.0
    for first, then in permutations(range(4), 2):
        quantiles = np.quantile(scores[:, first], np.arange(1, 5) / 5)
        for threshold in [0.0, *quantiles.tolist(), 1.0]:
            stops = scores[:, first] >= threshold
            spent = cost[:, first].mean() + np.where(stops, 0, cost[:, then]).mean()
            if spent <= budget:
                best = max(best, float(np.where(stops, correct[:, first], correct[:, then]).mean()))
    assert accuracy == pytest.approx(best, abs=1e-12)


def test_the_way_rises_from_the_first_answer_to_the_most_accurate_end() -> None:
    data = draw_tables()
    stages = search_stages(*data, depth=3, budget=0.3, steps=20)
    policy = Cascade(targets=tuple(NAMES[k] for k in stages.columns), knots=stages.knots)
    points = [judge_policy(policy, row[0], data) for row in stages.knots]
    assert points[0] == pytest.approx((stages.accuracies[0], stages.costs[0]))
    assert points[-1] == pytest.approx((stages.accuracies[1], stages.costs[1]))
    low, high = stages.costs
    for row, (_, paid) in zip(stages.knots, points, strict=True):
        assert (paid - low) / (high - low) == pytest.approx(row[0], abs=1e-9)
    assert max(accuracy for accuracy, _ in points) == pytest.approx(points[-1][0])


def test_what_was_not_measured_is_left_out() -> None:
    scores, correct, cost = draw_tables(600)
    random = np.random.default_rng(2)
    holes = random.random(correct.shape) < 0.05
    is_labelled = ~holes.any(axis=1)
    labels, paid = np.where(holes, np.nan, correct), np.where(holes[:, ::-1], np.nan, cost)
    is_known = is_labelled & ~holes[:, ::-1].any(axis=1)
    stages = search_stages(scores, labels, paid, depth=3, budget=None, steps=10)
    same = search_stages(
        scores[is_known], correct[is_known], cost[is_known], depth=3, budget=None, steps=10
    )
    assert stages == same
    assert stages.queries == is_known.sum()
    labels = correct.copy()
    labels[30:, 2] = np.nan
    rare = search_stages(scores, labels, cost, depth=3, budget=None, steps=10)
    assert rare.left_out == (2,)
    assert 2 not in rare.columns
    assert rare.queries == 600


def test_what_teaches_nothing_is_refused() -> None:
    scores, correct, cost = draw_tables(50)
    with pytest.raises(FitError, match="no query has a label and a cost"):
        search_stages(scores, np.full_like(correct, np.nan), cost, depth=2, budget=None, steps=5)
    with pytest.raises(FitError, match="no answer costs anything"):
        search_stages(scores, correct, 0 * cost, depth=2, budget=None, steps=5)
    with pytest.raises(FitError, match=r"the cheapest target costs .* raise the budget"):
        search_stages(scores, correct, cost, depth=2, budget=1e-6, steps=5)
    assert search_stages(scores, correct, cost, depth=1, budget=None, steps=5).knots == (
        (0.0,),
        (1.0,),
    )


def test_the_scorer_reads_the_answer() -> None:
    """Long answers are wrong; the earlier predictions hold no signal."""
    random = np.random.default_rng(0)
    correct = random.integers(2, size=(800, 2)).astype(np.float64)
    tokens = np.where(correct == 1, 50, 400) * random.lognormal(0, 0.5, (800, 2))
    predicted = np.full((800, 2), 0.5)
    tokens[:, 1] = np.nan
    half = slice(400), slice(400, 800)
    scorer = AnswerScorer.fit(
        predicted[half[0]], tokens[half[0]], correct[half[0]], targets=("a", "b")
    )
    scores = scorer.scores(predicted[half[1]], tokens[half[1]], targets=("a", "b"))
    right = correct[half[1], 0] == 1
    assert np.mean((scores[:, 0] > 0.5) == right) > 0.95
    assert np.ptp(scores[:, 1]) == 0  # no length is known
    single = scorer.scores(predicted[:1, :1], np.array([[np.nan]]), targets=("b",))
    assert single[0, 0] == pytest.approx(correct[half[0], 1].mean(), abs=0.02)
    with pytest.raises(ConfigError, match=r"doesn't know \['c'\]"):
        scorer.scores(predicted[:1, :1], tokens[:1, :1], targets=("c",))


def test_few_labels_leave_the_prediction_as_it_is() -> None:
    nothing = np.full((3, 1), np.nan)
    scorer = AnswerScorer.fit(np.full((3, 1), 0.5), nothing, nothing, targets=("a",))
    predicted = np.array([[0.1], [0.7], [1.0]])
    scores = scorer.scores(predicted, np.array([[5.0], [np.nan], [1e9]]), targets=("a",))
    np.testing.assert_allclose(scores, predicted, atol=1e-5)


def test_answers_are_scored_by_a_scorer_that_has_not_seen_them() -> None:
    scores, correct, cost = draw_tables(200)
    folds = np.arange(200) % 4
    tokens = np.full(correct.shape, np.nan)
    fit = FrugalCascade(depth=2, folds=4).fit(scores, correct, cost, tokens, folds, targets=NAMES)
    assert fit.policy.scorer is not None
    assert set(fit.policy.scorer.rows) == set(NAMES)
    assert fit.notes[0].startswith(f"the cascade calls {fit.policy.targets[0]}")
    assert "is within its budget" not in " ".join(fit.notes)
    budget = replace(FrugalCascade(), budget=0.2)
    notes = budget.fit(scores, correct, cost, tokens, folds, targets=NAMES).notes
    assert any("is within its budget at lam = " in note for note in notes)


def test_online_it_stops_where_its_path_says() -> None:
    policy = learn_cascade()
    scores = draw_tables(40, seed=3)[0]
    for at in (0.0, 0.2, 0.6, 1.0):
        chosen = policy.choose(scores, np.tile(COST, (40, 1)), at, targets=NAMES)
        for row, k in zip(scores, chosen, strict=True):
            run = policy.run(str, lambda name, _, row=row: row[NAMES.index(name)], at=at)
            assert run.target == NAMES[k]


def test_save_then_load_gives_the_same() -> None:
    scores, correct, cost = draw_tables(200)
    fit = FrugalCascade(folds=2).fit(
        scores, correct, cost, 100 * cost, np.arange(200) % 2, targets=NAMES
    )
    saved = json.loads(json.dumps(fit.policy.to_dict()))
    loaded = from_dict(saved)
    assert isinstance(loaded, Cascade)
    assert loaded == fit.policy
    assert set(fit.policy.summary()) == {"kind", "targets", "thresholds", "scorer"}
    before = from_dict({"kind": "cascade", "targets": ["a", "b"]})  # as it was saved before knots
    assert before == Cascade(targets=("a", "b"))
    for wrong in (
        {"scorer": {}},
        {"scorer": {"targets": {"cheap": [0, 0, 0, 1, 0, 0]}}},
        {"scorer": {"targets": {"cheap": [0, 1, 0, float("nan"), 0, 0]}}},
        {"knots": [[0, "a"]]},
        {"knots": 3},
    ):
        with pytest.raises(CorruptError):
            from_dict(saved | wrong)


@pytest.mark.parametrize(
    "knots",
    [
        ((0.0, 0.0), (1.0, 0.5), (0.5, 0.6)),
        ((0.0, 0.0), (1.0, 0.5, 0.5)),
        ((0.0, 0.0), (0.5, 0.5)),
        ((0.0, 0.1), (1.0, 0.5)),
        ((0.0, 0.0), (0.5, 0.6), (1.0, 0.5)),
        ((0.0, 0.0), (1.0, 1.5)),
        ((0.0, 0.0), (1.0, float("nan"))),
        ((0.0,), (1.0,)),
    ],
)
def test_knots_that_make_no_sense(knots: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ConfigError, match="knot"):
        Cascade(targets=("a", "b"), knots=knots)


@pytest.mark.parametrize(
    "wrong",
    [{"depth": 0}, {"depth": 5}, {"steps": 1}, {"folds": 1}, {"budget": 0.0}, {"budget": np.inf}],
)
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} (is )?\\d|{next(iter(wrong))} is"):
        FrugalCascade(**wrong)


def test_options_are_read_as_they_are_written() -> None:
    for config in (FrugalCascade(), FrugalCascade(depth=2, budget=0.5, steps=9, folds=3)):
        assert FrugalCascade.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert FrugalCascade.from_dict({"kind": "frugal_cascade", "budget": 1}).budget == 1.0
    with pytest.raises(CorruptError, match="unknown options"):
        FrugalCascade.from_dict({"kind": "frugal_cascade", "order": []})
    assert Lambda().scores(np.ones((1, 1)), np.ones((1, 1))).tolist() == [[1]]
