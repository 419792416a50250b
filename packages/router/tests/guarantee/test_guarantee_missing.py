"""Missing labels: the promise is about all queries, whatever made labels missing."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binom

from packages.router.tests.evaluation.trials import Array, random_system
from packages.router.tests.guarantee.guarantees import (
    hide_labels,
    is_broken,
    naive_p_value,
    population,
    sample_rows,
    subjects,
    true_share,
)
from prefill_router.data import Query
from prefill_router.evaluation import Trial
from prefill_router.guarantee import Guarantee, best_single, guarantee
from prefill_router.guarantee.losses import Losses, order_ids, unevenness
from prefill_router.statistics import p_value

pytestmark = pytest.mark.slow

LAMS = tuple(np.linspace(1, 0, 21).tolist())
DRAWS = 60
World = tuple[Trial, tuple[Query, ...]]


@pytest.fixture(scope="module")
def school() -> World:
    return subjects()


def by_subject(world: World) -> Array:
    """Of four queries in the lab, three lack t1's label."""
    trial, queries = world
    lost = np.random.default_rng(7).random(len(trial)) < 0.75
    cells = np.zeros(trial.correct.shape, dtype=np.bool_)
    cells[:, 1] = lost & np.array([query.domain == "lab" for query in queries])
    return cells


def wrong_ones(world: World) -> Array:
    """Of ten wrong answers of t1, three weren't scored."""
    trial = world[0]
    cells = np.zeros(trial.correct.shape, dtype=np.bool_)
    lost = np.random.default_rng(8).random(len(trial)) < 0.3
    cells[:, 1] = lost & (trial.correct[:, 1] == 0)
    return cells


def right_ones_of_the_best(world: World) -> Array:
    """Of five right answers of the best target, one wasn't scored."""
    trial = world[0]
    cells = np.zeros(trial.correct.shape, dtype=np.bool_)
    lost = np.random.default_rng(9).random(len(trial)) < 0.2
    cells[:, 2] = lost & (trial.correct[:, 2] == 1)
    return cells


def test_labels_missing_where_the_router_goes_wrong_certify_nothing(school: World) -> None:
    trial, queries = school
    assert true_share(trial, 1.0, "t2") == pytest.approx(0.934, abs=0.005)
    masked = hide_labels(trial, by_subject(school))
    assert naive_p_value(masked, "t2", 0.98, level=0.05) < 1e-3  # they would have certified it
    for assume in ("nothing", "missing-at-random"):
        promise = guarantee(
            masked, best="t2", keep=0.98, assume=assume, queries=queries, resamples=0, lams=LAMS
        )
        assert promise.lam is None
        assert promise.bounded
        assert promise.missing.queries == np.isnan(masked.correct[:, 1]).sum()
        assert {"domain", "the router's choice"} <= set(promise.missing.signs)
        (cell,) = promise.missing.where
        assert (cell.target, cell.domain, cell.missing) == ("t1", "lab", promise.missing.queries)
        assert cell.needed == sum(query.domain == "lab" for query in queries)
        assert promise.least < true_share(trial, 1.0, "t2") < promise.kept_share.value
        assert f"{promise.missing.queries:,} of 20,000 queries lack a label" in promise.advice


@pytest.mark.parametrize("way", [by_subject, wrong_ones, right_ones_of_the_best])
def test_the_promise_is_kept_whatever_made_labels_missing(school: World, way) -> None:  # noqa: ANN001
    trial = school[0]
    masked, share = hide_labels(trial, way(school)), true_share(trial, 1.0, "t2") + 0.001
    random, broken, careless = np.random.default_rng(0), 0, 0
    for _ in range(DRAWS):
        sample = sample_rows(masked, random.integers(0, len(trial), 800))
        options = {"best": "t2", "keep": share, "confidence": 0.9, "lams": LAMS, "resamples": 0}
        broken += is_broken(guarantee(sample, **options), trial)  # type: ignore[arg-type]
        careless += naive_p_value(sample, "t2", share, level=0.1) <= 0.1
    assert broken <= binom.ppf(1 - 1e-4, DRAWS, 0.1)
    assert careless > binom.ppf(1 - 1e-9, DRAWS, 0.1)  # the check would see a wrong procedure


def test_a_few_missing_labels_leave_most_of_the_promises(school: World) -> None:
    trial, random = school[0], np.random.default_rng(1)
    masked = hide_labels(trial, random.random(trial.correct.shape) < 0.01)
    promises = 0
    for _ in range(20):
        sample = sample_rows(masked, random.integers(0, len(trial), 1500))
        promise = guarantee(sample, best="t2", keep=0.86, lams=LAMS, resamples=0)
        assert promise.missing.queries > 0
        promises += promise.lam is not None
    assert promises > 10


@pytest.mark.parametrize("assume", ["nothing", "missing-at-random"])
def test_complete_labels_are_tested_as_they_are(assume) -> None:  # noqa: ANN001
    trial = sample_rows(Trial.join(*population()), np.arange(900))
    promise = guarantee(trial, best="t2", keep=0.95, assume=assume, resamples=0)
    assert (promise.missing.queries, promise.missing.where) == (0, ())
    assert promise.least == pytest.approx(promise.kept_share.value)
    assert promise.lam is not None
    order, best = order_ids(trial.query_ids), trial.correct[:, 2]
    for tested in promise.sequence[::20]:
        router = trial.of_choice(trial.correct, trial.path.at(tested.lam))
        paired = ((0.95 * best - router + 1) / 1.95)[order]
        assert tested.p_value == pytest.approx(p_value(paired, 1 / 1.95, level=0.05))
        assert (tested.queries, tested.missing) == (900, 0)


@given(st.integers(0, 10_000), st.sampled_from([0.6, 1.0, 1.3]))
@settings(max_examples=60, deadline=None)
def test_no_labels_make_a_loss_larger_or_a_share_smaller_than_the_bounds(
    seed: int, keep: float
) -> None:
    random = np.random.default_rng(seed)
    complete = Trial.join(*random_system(queries=30, seed=seed))
    part = hide_labels(complete, random.random(complete.correct.shape) < 0.3)
    choice = complete.path.at(0.9)
    bounds = Losses.of(part, choice, 3, keep)
    truth = Losses.of(complete, choice, 3, keep)
    assert (bounds.largest >= truth.largest - 1e-12).all()
    np.testing.assert_array_equal(bounds.largest[bounds.measured], truth.largest[bounds.measured])
    assert np.isnan(truth.least) or bounds.least <= truth.least + 1e-12
    assert truth.least == pytest.approx(truth.kept_share, nan_ok=True)


def test_the_bounds_are_reached_by_some_labels() -> None:
    part = Trial.join(*random_system(queries=200, missing=0.3, seed=2))
    choice = part.path.at(0.9)
    bounds = Losses.of(part, choice, 3, 0.9)
    worst = np.nan_to_num(part.correct, nan=0)
    other = np.isnan(part.correct[:, 3]) & (choice != 3)
    worst[other, 3] = 1
    truth = Losses.of(replace(part, correct=worst), choice, 3, 0.9)
    assert bounds.least == pytest.approx(truth.kept_share)
    np.testing.assert_allclose(bounds.largest, truth.largest)


def read_content(promise: Guarantee) -> dict[str, object]:
    content: dict[str, object] = json.loads(json.dumps(promise.to_dict(), allow_nan=False))
    return content


def test_labels_lost_with_their_queries_may_be_assumed_to_be_missing_at_random(
    school: World,
) -> None:
    trial, queries = school
    rows = np.random.default_rng(3).random(len(trial)) < 0.2
    masked = hide_labels(trial, np.repeat(rows[:, None], 3, axis=1))
    options = {"best": "t2", "keep": 0.89, "queries": queries, "resamples": 0, "lams": LAMS}
    assumed = guarantee(masked, assume="missing-at-random", **options)  # type: ignore[arg-type]
    careful = guarantee(masked, **options)  # type: ignore[arg-type]
    assert assumed.lam is not None
    assert (assumed.bounded, assumed.queries) == (False, int((~rows).sum()))
    assert careful.lam is None
    assert (careful.bounded, careful.queries) == (True, len(trial))
    assert (read_content(assumed)["assume"], read_content(careful)["assume"]) == (
        "missing-at-random",
        "nothing",
    )
    missing = read_content(careful)["missing"]
    assert isinstance(missing, dict)
    assert (missing["queries"], missing["where"][0]["domain"]) == (rows.sum(), "field")


def test_as_many_labels_as_are_asked_for_are_about_enough(school: World) -> None:
    trial = school[0]
    complete = sample_rows(trial, np.arange(3000))
    lost = np.flatnonzero(np.random.default_rng(5).random(3000) < 0.25)

    def without(rows: Array) -> Guarantee:
        cells = np.zeros(complete.correct.shape, dtype=np.bool_)
        cells[rows] = True
        return guarantee(hide_labels(complete, cells), best="t2", keep=0.85, lams=LAMS, resamples=0)

    none = without(lost)
    assert none.lam is None
    assert none.labels is not None
    assert 20 < none.labels < len(lost)
    assert without(lost[min(2 * none.labels, len(lost)) :]).lam is not None
    assert without(lost[none.labels // 3 :]).lam is None


def test_labels_lost_by_chance_look_so_and_others_do_not() -> None:
    random = np.random.default_rng(0)
    groups = random.choice(["a", "b", "c", "rare"], 300, p=[0.5, 0.3, 0.19, 0.01])
    chance = [unevenness(random.random(300) < 0.1, groups, seed=0) for _ in range(400)]
    for level in (0.05, 0.2, 0.5):
        share = float(np.mean(np.array(chance) <= level))
        assert share <= binom.ppf(1 - 1e-5, 400, level) / 400
    assert np.mean(np.array(chance) <= 0.5) > 0.3
    planted = random.random(300) < np.where(groups == "b", 0.3, 0.05)
    assert unevenness(planted, groups, seed=0) <= 0.001


def test_nothing_and_everything_missing_tell_nothing() -> None:
    for groups in (np.zeros(20), np.arange(20)):
        for lost in (np.zeros(20, dtype=np.bool_), np.ones(20, dtype=np.bool_)):
            assert unevenness(lost, groups, seed=0) == 1


def test_labels_missing_on_hard_queries_are_seen() -> None:
    trial = Trial.join(*random_system(queries=800, seed=4))
    hard = trial.correct[:, [0, 2, 3]].mean(axis=1) < 0.3
    cells = np.zeros(trial.correct.shape, dtype=np.bool_)
    cells[:, 1] = hard & (np.random.default_rng(0).random(800) < 0.7)
    promise = guarantee(hide_labels(trial, cells), best="t1", keep=0.5, resamples=0)
    assert promise.missing.by_difficulty <= 0.001
    assert promise.missing.by_domain == 1  # no domain is known


def test_a_few_lucky_labels_do_not_make_a_best_single_target() -> None:
    _, data = random_system(queries=400, targets=4, seed=6)
    plain = best_single(data)
    assert plain == data.pool.names[int(data.correct.mean(axis=0).argmax())]
    correct = data.correct.copy()
    correct[:, 0] = np.nan
    correct[np.flatnonzero(data.correct[:, 0] == 1)[:5], 0] = 1
    assert np.nanmean(correct[:, 0]) == 1
    assert best_single(replace(data, correct=correct)) == plain


def test_a_target_measured_on_easy_queries_alone_is_not_the_best() -> None:
    random = np.random.default_rng(0)
    easy = random.random(1000) < 0.6
    _, data = random_system(queries=1000, targets=2, seed=6)
    chance = np.where(easy[:, None], [0.85, 0.9], [0.4, 0.5])
    correct = (random.random((1000, 2)) < chance).astype(np.float64)
    correct[~easy, 0] = np.nan
    assert np.nanmean(correct[:, 0]) > correct[:, 1].mean()
    assert best_single(replace(data, correct=correct)) == data.pool.names[1]


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_with_all_labels_the_best_single_target_is_the_most_accurate(seed: int) -> None:
    _, data = random_system(queries=40, targets=6, seed=seed)
    assert best_single(data) == data.pool.names[int(data.correct.mean(axis=0).argmax())]


def test_targets_without_a_common_query_or_any_label_are_compared_all_the_same() -> None:
    _, data = random_system(queries=40, targets=3, seed=1)
    correct = np.full((40, 3), np.nan)
    correct[:30, 1], correct[30:, 2] = 1, 1
    assert best_single(replace(data, correct=correct)) == "t1"  # more labels, equally right


def test_never_are_fewer_queries_asked_for_than_there_are(school: World) -> None:
    random = np.random.default_rng(2)
    promises = [
        guarantee(
            sample_rows(school[0], random.integers(0, 20_000, 300)),
            best="t2",
            keep=0.84,
            lams=(1.0,),
            resamples=0,
        )
        for _ in range(40)
    ]
    needed = [promise.needed for promise in promises if promise.needed is not None]
    assert len(needed) > 5
    assert min(needed) > 300
