"""Targets join and leave a fitted router."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.router.fixtures import SMALL, with_encoder
from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset, split
from prefill_router.errors import ConfigError, DataError
from prefill_router.fitting import add_target, fit_router, known_answers, remove_target
from prefill_router.fitting.added_target import HeadPrior
from prefill_router.router import PoolChanges, Router, read_light
from prefill_router.statistics import auc_by_target, sigmoid
from prefill_router.targets import Pool, Target
from prefill_router.testing import FakeEncoder, make_routing_dataset

NEW = "target-1"


@pytest.fixture(scope="module")
def answers() -> RoutingDataset:
    return make_routing_dataset(queries=400, targets=4, missing=0.05)


@pytest.fixture(scope="module")
def states(answers: RoutingDataset) -> MemoryActivations:
    sites = [Site(layer, pooling) for layer in (2, 3, 4) for pooling in ("last", "mean")]
    return FakeEncoder().encode(answers.queries, sites)


@pytest.fixture(scope="module")
def router(answers: RoutingDataset, states: MemoryActivations) -> Router:
    other_answers = answers.select(targets=[name for name in answers.pool.names if name != NEW])
    fit = fit_router(other_answers, [states], config=SMALL, split=split(answers))
    return with_encoder(fit.router, FakeEncoder())


def join_target(
    router: Router,
    answers: RoutingDataset,
    states: MemoryActivations,
    *,
    labels: int = 40,
    caution: float = 0.0,
) -> Router:
    ask, new = known_answers(answers, NEW), answers.pool.select([NEW])
    addition = add_target(
        router, new, answers, ask, labels=labels, stores=[states], caution=caution
    )
    assert addition.answered <= labels == len(addition.questions) == len(set(addition.questions))
    assert set(addition.questions) <= set(router.split["train"])
    return addition.router


def heads(router: Router) -> PoolChanges:
    assert router.changes is not None
    return router.changes


def uncertainty(router: Router) -> float:
    return float(np.trace(heads(router).covariance[0]))


@pytest.mark.slow
def test_the_other_targets_numbers_stay_bit_for_bit(
    router: Router, answers: RoutingDataset, states: MemoryActivations
) -> None:
    before = router.predict(answers, stores=[states])
    after = join_target(router, answers, states).predict(answers, stores=[states])
    np.testing.assert_array_equal(after.correctness[:, :3], before.correctness)
    np.testing.assert_array_equal(after.estimated_cost[:, :3], before.estimated_cost)
    assert after.targets == (*before.targets, NEW)
    assert after.scale == before.scale


@pytest.mark.slow
def test_its_head_is_learned_from_its_labels(
    router: Router, answers: RoutingDataset, states: MemoryActivations
) -> None:
    test = answers.select(router.split["test"], targets=[*router.pool.names, NEW])
    predicted = (
        join_target(router, answers, states).predict(test, stores=[states]).correctness[:, 3:]
    )
    assert auc_by_target(predicted, test.correct[:, 3:])[0] > 0.8
    assert abs(predicted.mean() - np.nanmean(test.correct[:, 3])) < 0.1


def test_more_labels_leave_less_uncertainty_and_caution_lowers_by_it(
    router: Router, answers: RoutingDataset, states: MemoryActivations
) -> None:
    few, many = (join_target(router, answers, states, labels=n) for n in (5, 80))
    assert uncertainty(many) < uncertainty(few)
    test = answers.select(router.split["test"], targets=[*router.pool.names, NEW])

    def measure_caution(labels: int) -> float:
        each = [
            join_target(router, answers, states, labels=labels, caution=c)
            .predict(test, stores=[states])
            .correctness[:, 3]
            for c in (0.0, 1.0)
        ]
        assert (each[1] < each[0]).all()
        return float((each[0] - each[1]).mean())

    assert measure_caution(80) < measure_caution(5)


def test_without_labels_it_is_the_mean_of_the_others(
    router: Router, answers: RoutingDataset, states: MemoryActivations
) -> None:
    wider = join_target(router, answers, states, labels=0)
    np.testing.assert_array_equal(heads(wider).weights[0], [0, 1, 0, 0, 0])


def test_test_rows_and_the_order_of_rows_change_nothing(
    router: Router, answers: RoutingDataset, states: MemoryActivations
) -> None:
    test = np.isin(answers.query_ids, router.split["test"])[:, None]
    other = dataclasses.replace(
        answers, correct=np.where(test, 1 - answers.correct, answers.correct)
    )
    other = other.select(answers.query_ids[::-1])
    first, second = (heads(join_target(router, labels, states)) for labels in (answers, other))
    np.testing.assert_array_equal(first.weights, second.weights)


def test_it_is_saved_with_its_uncertainty(
    router: Router, answers: RoutingDataset, states: MemoryActivations, tmp_path: Path
) -> None:
    wider = join_target(router, answers, states, caution=0.5)
    wider.save(tmp_path / "router")
    read = Router.load(tmp_path / "router")
    np.testing.assert_array_equal(
        read.predict(answers, stores=[states]).correctness,
        wider.predict(answers, stores=[states]).correctness,
    )
    assert heads(read).caution == (0.5,)
    assert read_light(tmp_path / "router").costs.scale == router.costs.scale
    request = "Question 1 of difficulty 0.50: why?"
    decision = with_encoder(read, FakeEncoder()).route(request, lam=1.0)
    assert set(decision.order) == {*router.pool.names, NEW}
    assert decision.estimated_cost[NEW] > 0
    assert read.record.verdict is None
    assert "was added" in read.record.notes[-1]


def test_a_target_that_leaves_takes_no_number_with_it(
    router: Router, answers: RoutingDataset, states: MemoryActivations, tmp_path: Path
) -> None:
    wider = join_target(router, answers, states)
    before = wider.predict(answers, stores=[states])
    for name in wider.pool.names:
        narrower = remove_target(wider, name)
        narrower.save(tmp_path / name)
        after = Router.load(tmp_path / name).predict(answers, stores=[states])
        columns = [k for k, other in enumerate(before.targets) if other != name]
        np.testing.assert_array_equal(after.correctness, before.correctness[:, columns])
        np.testing.assert_array_equal(after.estimated_cost, before.estimated_cost[:, columns])


def test_answers_stop_where_nothing_comes(
    router: Router, answers: RoutingDataset, states: MemoryActivations
) -> None:
    calls = []

    def ask(ids):  # noqa: ANN001, ANN202
        calls.append(len(ids))
        return known_answers(answers, NEW)(ids[:7])

    new = answers.pool.select([NEW])
    addition = add_target(router, new, answers, ask, labels=80, stores=[states])
    assert len(calls) < 8
    assert addition.answered <= 7


def test_what_cannot_be_is_refused(
    router: Router, answers: RoutingDataset, states: MemoryActivations
) -> None:
    ask, new = known_answers(answers, NEW), answers.pool.select([NEW])
    with pytest.raises(ConfigError, match="knows 'target-0' already"):
        add_target(router, answers.pool.select(["target-0"]), answers, ask, labels=3)
    with pytest.raises(DataError, match="lacks the answers of"):
        add_target(router, new, answers.select(targets=[NEW]), ask, labels=3)
    some = router.split["train"][:2]
    with pytest.raises(DataError, match="only 2 train queries"):
        add_target(router, new, answers, ask, labels=3, candidates=some, stores=[states])
    small = remove_target(router, "target-0")
    with pytest.raises(ConfigError, match="needs at least two targets"):
        remove_target(small, "target-2")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_posterior_is_where_its_slope_is_zero(seed: int) -> None:
    """Whole Newton steps run back and forth here, and end far from the optimum."""
    random = np.random.default_rng(seed)
    inputs = np.hstack([np.ones((100, 1)), random.normal(0, 8, (100, 15))])
    surprise, weights = random.normal(0, 8, 100), random.normal(0, 1, 16)
    labels = (inputs @ weights + surprise > 0).astype(np.float64)
    precision, mean = np.full(16, 14.0), np.eye(16)[1]
    prior = HeadPrior(inputs, surprise, 1.0, precision, mean)
    posterior, covariance = prior.posterior(np.arange(100), labels)
    chances = sigmoid(inputs @ posterior + surprise)
    slope = inputs.T @ (labels - chances) - precision * (posterior - mean)
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    assert (np.linalg.eigvalsh(covariance) > 0).all()


@pytest.mark.slow
def test_another_effort_begins_as_its_siblings(
    answers: RoutingDataset, states: MemoryActivations
) -> None:
    """Before any label its log-odds are the mean of those of the model's other efforts."""
    names = ("m:low", "m:medium", "m:high", "other")
    same = {"input_price": 1.0, "output_price": 2.0}
    pool = Pool(tuple(Target(name=name, **same) for name in names))
    data = dataclasses.replace(answers, pool=pool)
    train = data.select(targets=["m:low", "m:high", "other"])
    router = fit_router(train, [states], config=SMALL, split=split(data)).router
    new, ask = data.pool.select(["m:medium"]), known_answers(data, "m:medium")
    wider = add_target(router, new, data, ask, labels=0, stores=[states], caution=0.0).router
    np.testing.assert_allclose(heads(wider).weights[0], [0, 1, 0.5, 0.5, 0])
    strangers = Pool((Target(name="stranger", **same),))
    ask_stranger = known_answers(
        dataclasses.replace(data.select(targets=["other"]), pool=strangers), "stranger"
    )
    apart = add_target(
        router, strangers, data, ask_stranger, labels=0, stores=[states], caution=0.0
    ).router
    np.testing.assert_allclose(heads(apart).weights[0], [0, 1, 0, 0, 0])
