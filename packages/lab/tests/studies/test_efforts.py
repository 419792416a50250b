"""The study of reasoning effort: fixed pairs, sets of choices at the same budgets, and gains."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prefill_router.cost import CostScale
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.policy import Predictions
from prefill_router.reporting import write_report_files
from prefill_router.targets import Pool, Target, pool_from_dict
from prefill_router_lab.studies import EffortOptions, list_choice_sets, study_efforts

ROWS = [
    {"name": "small", "efforts": ["low", "high"], "input_price": 1.0, "output_price": 1.0},
    {"name": "large", "efforts": ["low", "high"], "input_price": 2.0, "output_price": 2.0},
]
POOL = pool_from_dict({"targets": ROWS}, source="pool")
COST = np.array([1.0, 10.0, 2.0, 20.0])
QUICK = EffortOptions(resamples=200)


def outcomes(correct: np.ndarray, pool: Pool = POOL) -> RoutingDataset:
    count = len(correct)
    queries = [Query(f"q{i}", f"question {i}") for i in range(count)]
    cost = np.tile(COST[: len(pool)], (count, 1))
    return RoutingDataset.of(queries, pool, correct.astype(np.float64), recorded_cost=cost)


def make_predictions(data: RoutingDataset, correctness: np.ndarray) -> Predictions:
    cost = np.tile(COST[: len(data.pool)], (len(data), 1))
    return Predictions(
        query_ids=data.query_ids,
        targets=data.pool.names,
        correctness=correctness,
        estimated_cost=cost,
        scale=CostScale(1.0, 20.0),
    )


@pytest.fixture(scope="module")
def easy_and_hard() -> tuple[RoutingDataset, Predictions]:
    """Four kinds of queries; the cheapest target that answers each differs, and is predicted."""
    kinds = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]])
    correct = np.tile(kinds, (50, 1))
    data = outcomes(correct)
    return data, make_predictions(data, np.where(correct == 1, 0.9, 0.1))


def test_sets_of_choices() -> None:
    sets = list_choice_sets(POOL)
    assert [(choice_set.kind, choice_set.targets) for choice_set in sets] == [
        ("models", ("small:low", "large:low")),
        ("models", ("small:high", "large:high")),
        ("efforts", ("small:low", "small:high")),
        ("efforts", ("large:low", "large:high")),
        ("both", POOL.names),
    ]
    alone = Pool((*POOL.targets[:2], Target(name="plain")))
    kinds = [(choice_set.kind, choice_set.targets) for choice_set in list_choice_sets(alone)]
    assert kinds[0] == ("models", ("small:low", "plain"))
    with pytest.raises(ConfigError, match="no model has several efforts"):
        list_choice_sets(Pool((Target(name="a"), Target(name="b:low"))))


def test_choosing_both_wins_where_it_must(
    easy_and_hard: tuple[RoutingDataset, Predictions],
) -> None:
    """At half of the price of the best pair, only both reach all right answers."""
    data, predictions = easy_and_hard
    study = study_efforts(predictions, data, QUICK)
    assert study.best == "large:high"
    assert study.fixed["small:low"].accuracy.value == 0.25
    assert study.fixed["large:high"].cost.value == 20.0
    half = 2
    point = study.points["models and efforts"][half]
    assert point is not None
    assert point.accuracy.value == 1.0
    assert point.cost.value == pytest.approx((1 + 10 + 2 + 20) / 4)
    for kind in ("models", "efforts"):
        gain = study.gains[kind][half]
        assert gain is not None
        assert gain.lower > 0
    models = study.points["models, effort high"]
    assert models[0] is None  # even small:high costs more than a tenth of the best
    costs = [p.cost.value for p in study.points["models and efforts"] if p is not None]
    assert costs == sorted(costs)
    assert all(c <= b + 1e-9 for c, b in zip(costs, study.budgets, strict=True))


def test_no_gain_is_claimed_where_effort_does_nothing() -> None:
    """Effort that changes no answer is never worth its price."""
    random = np.random.default_rng(0)
    small, large = random.random((2, 400)) < np.array([[0.4], [0.7]])
    correct = np.stack([small, small, large, large], axis=1)
    data = outcomes(correct)
    chances = np.tile([0.4, 0.4, 0.7, 0.7], (400, 1))
    study = study_efforts(make_predictions(data, chances), data, QUICK)
    for gains in study.gains["models"]:
        assert gains is None or not gains.lower > 0
    best = study.points["models and efforts"][-1]
    assert best is not None
    assert best.cost.value <= 2.0  # large:low, never an effort that costs ten times as much


def test_labels_do_not_choose_the_setting(
    easy_and_hard: tuple[RoutingDataset, Predictions],
) -> None:
    data, predictions = easy_and_hard
    other = replace(data, correct=1 - data.correct)
    lams = [
        [p and p.lam for p in study_efforts(predictions, each, QUICK).points["models and efforts"]]
        for each in (data, replace(other, correct=data.correct[::-1]))
    ]
    assert lams[0] == lams[1]


def test_queries_with_missing_outcomes_are_left_out() -> None:
    correct = np.tile([[1.0, 1.0, 0.0, 1.0]], (40, 1))
    correct[:10, 2] = np.nan
    data = outcomes(correct)
    study = study_efforts(make_predictions(data, np.full((40, 4), 0.5)), data, QUICK)
    assert study.queries == 30
    correct[:, 1] = np.nan
    nothing = outcomes(correct)
    with pytest.raises(DataError, match="no query has the label and the cost of every target"):
        study_efforts(make_predictions(nothing, np.full((40, 4), 0.5)), nothing, QUICK)


@pytest.mark.slow
def test_its_page(easy_and_hard: tuple[RoutingDataset, Predictions], tmp_path: Path) -> None:
    data, predictions = easy_and_hard
    report = study_efforts(predictions, data, QUICK).report(title="Effort", facts={})
    write_report_files(report, tmp_path)
    assert (tmp_path / "index.html").is_file()
    assert report.numbers["gains_of_both"]["models"][3]["over"] == "models, effort high"
    rows = (tmp_path / "effort.csv").read_text().splitlines()
    assert len(rows) > 10
