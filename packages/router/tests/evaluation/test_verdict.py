"""The verdict, the references that it is of, and the settings that are chosen on train rows."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system, system
from prefill_router.data import Query, RoutingDataset
from prefill_router.evaluation import LambdaSweep, Trial, choose_operating_points, evaluate, judge
from prefill_router.evaluation.bootstrap import ones
from prefill_router.evaluation.fixed_mix import FixedChoice, FixedOutcome
from prefill_router.policy import OperatingPoints
from prefill_router.targets import Pool, Target

pytestmark = pytest.mark.slow


def planted(
    *, queries: int = 900, signal: float = 1.0, domain_signal: float = 0.0, seed: int = 0
) -> tuple[Trial, RoutingDataset]:
    """Three targets; what parts them is known to the router (`signal`), or told by the domain."""
    random = np.random.default_rng(seed)
    size = 2 * queries
    own = random.normal(0, 1, (size, 3)) * signal
    domain = np.arange(size) % 4
    by_domain = domain_signal * np.cos(domain[:, None] + np.arange(3))
    base = np.array([0.0, 0.3, 0.6])
    chance = 1 / (1 + np.exp(-(own + by_domain + base)))
    correct = (random.random((size, 3)) < chance).astype(np.float64)
    cost = np.tile([1.0, 2.0, 4.0], (size, 1)) * random.lognormal(0, 0.2, (size, 3))
    rows = [Query(f"q{i}", f"prompt {i}", "made", f"d{domain[i]}") for i in range(size)]
    pool = Pool(tuple(Target(name=f"t{k}") for k in range(3)))
    data = RoutingDataset.of(rows, pool, correct, recorded_cost=cost)
    seen = 1 / (1 + np.exp(-(own + base)))
    predictions, _ = system(seen, np.tile([1.0, 2.0, 4.0], (size, 1)), correct, cost)
    ids = data.query_ids
    trial = Trial.join(predictions.select(ids[queries:]), data)
    return trial, data.select(ids[:queries])


def test_the_mix_is_the_best_that_two_targets_make_at_any_cost() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        correct = (random.random((60, 5)) < random.random(5)).astype(np.float64)
        cost = np.tile(random.random(5), (60, 1))
        _, data = system(correct, cost, correct, cost)
        outcome = FixedOutcome.of(
            FixedChoice.mix(data), ("",) * 60, data.correct, data.observed_cost
        )
        c, a = cost[0], correct.mean(axis=0)
        for at in np.linspace(c.min(), c.max(), 7):
            best = max(
                a[j] if c[j] == c[k] else np.interp(at, [c[j], c[k]], [a[j], a[k]])
                for j, k in product(range(5), repeat=2)
                if c[j] <= at <= c[k] or (j == k and c[j] <= at)
            )
            assert outcome.at(ones(60), np.array([at]))[0] == pytest.approx(best)


def test_knowing_the_domain_is_never_worse_on_the_rows_that_it_was_chosen_on() -> None:
    _, train = planted(domain_signal=1.0)
    names = tuple(f"made / {q.domain}" for q in train.queries)
    outcomes = [
        FixedOutcome.of(fixed, names, train.correct, train.observed_cost)
        for fixed in (FixedChoice.mix(train), FixedChoice.by_domain(train))
    ]
    for at in (1.5, 2.0, 3.0, 4.0):
        mix, domains = (o.at(ones(len(train)), np.array([at]))[0] for o in outcomes)
        assert domains >= mix - 1e-12
    assert domains > mix + 0.02


def test_a_target_that_nobody_asked_takes_no_domain_away() -> None:
    _, train = planted(domain_signal=1.0)
    correct = train.correct.copy()
    correct[3:, 1] = np.nan
    scarce = RoutingDataset.of(
        train.queries, train.pool, correct, recorded_cost=train.recorded_cost
    )
    found = FixedChoice.by_domain(scarce)
    assert len(found.groups) == 4
    assert 1 not in found.corners


def test_without_costs_the_references_are_the_best_targets() -> None:
    _, train = planted(domain_signal=2.0)
    free = RoutingDataset.of(train.queries, train.pool, train.correct)
    best = int(free.correct.mean(axis=0).argmax())
    assert FixedChoice.mix(free).corners.tolist() == [[best]]
    by_domain = FixedChoice.by_domain(free)
    assert by_domain.corners.shape == (1, 5)
    for name, column in zip(by_domain.groups, by_domain.corners[0], strict=False):
        rows = [f"made / {q.domain}" == name for q in free.queries]
        assert column == free.correct[rows].mean(axis=0).argmax()


def test_a_router_that_knows_what_parts_the_targets_is_worth_it() -> None:
    trial, train = planted(signal=1.5)
    found = judge(trial, train, lam=0.8, resamples=200)
    assert found.word == "worth it"
    assert found.mix.gain.lower > 0
    assert found.domains is not None
    assert found.domains.gain.lower > 0
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_router_that_knows_nothing_is_not() -> None:
    trial, train = planted(queries=6000)
    blind = np.random.default_rng(5).permutation(trial.correctness)
    found = judge(replace(trial, correctness=blind), train, lam=0.8, resamples=100)
    assert found.word == "not worth it"
    assert found.mix.gain.value < 0
    assert found.needed == 0


def test_a_constant_router_is_named() -> None:
    trial, train = planted()
    same = np.tile([0.1, 0.9, 0.1], (len(trial), 1))
    found = judge(replace(trial, correctness=same), train, lam=1.0, resamples=50)
    assert found.word == "not worth it"
    assert "every query to t1" in found.because


def test_few_queries_cannot_tell_and_it_is_said_how_many_would() -> None:
    trial, train = planted(signal=0.25)
    few = replace(
        trial,
        **{
            name: getattr(trial, name)[:60]
            for name in ("query_ids", "correctness", "cost", "correct", "observed_cost", "domains")
        },
    )
    found = judge(few, train, lam=0.8, resamples=200)
    assert found.word == "can't tell"
    assert found.needed > 60
    assert f"about {found.needed:,} judged queries" in found.because


def test_a_gain_on_unmeasured_subjects_is_no_gain() -> None:
    """Whole domains lack a target's labels, and a router sends them there: told by no label."""
    trial, train = planted(queries=2000, signal=0.0, seed=3)
    hard = np.array([name in ("made / d0", "made / d1") for name in trial.domains])
    lost = hard & (np.random.default_rng(0).random(len(hard)) < 0.9)
    correct = trial.correct.copy()
    correct[hard & (np.arange(len(hard)) % 3 > 0)] = 0  # these domains are hard for all
    correct[lost, 1] = np.nan
    sends = np.where(hard[:, None], [0.1, 0.9, 0.2], [0.1, 0.2, 0.9])
    cost = np.where(np.isnan(correct), np.nan, 1.0)
    flat = RoutingDataset.of(
        train.queries, train.pool, train.correct, recorded_cost=train.correct * 0 + 1
    )
    router = replace(trial, correctness=sends, correct=correct, observed_cost=cost)
    label = router.of_choice(correct, router.path.at(1))
    naive = np.nanmean(label) - np.nanmean(correct[:, 2])
    found = judge(router, flat, lam=1.0, resamples=200)
    assert naive > 0.1
    assert found.mix.gain.lower <= 0 <= found.mix.gain.upper + 0.05
    assert found.word != "worth it"
    assert found.mix.queries == int((~np.isnan(correct[:, [1, 2]]).any(axis=1) | ~hard).sum())


def test_where_most_queries_cannot_be_compared_nothing_is_claimed() -> None:
    trial, train = planted(signal=1.5)
    correct = trial.correct.copy()
    correct[np.arange(len(trial)) % 3 > 0, 2] = np.nan
    found = judge(replace(trial, correct=correct), train, lam=0.8, resamples=50)
    assert found.word == "can't tell"
    assert "only" in found.because


def test_operating_points_are_the_best_of_the_rows_they_are_chosen_on() -> None:
    trial, _ = planted(signal=2.0)
    found = choose_operating_points(trial)
    assert found is not None
    points = LambdaSweep.of(trial).points(ones(len(trial)))
    singles = trial.correct.mean(axis=0), trial.observed_cost.mean(axis=0)
    best = int(singles[0].argmax())
    assert found.best == trial.targets[best]

    def at(lam: float) -> tuple[float, float]:
        choice = trial.path.at(lam)
        tables = (trial.correct, trial.observed_cost)
        return tuple(float(trial.of_choice(t, choice).mean()) for t in tables)  # type: ignore[return-value]

    assert at(found.accurate)[0] == pytest.approx(points.accuracy.max())
    assert found.thrifty is not None
    kept = points.cost[0][points.accuracy[0] >= singles[0][best]]
    assert at(found.thrifty)[1] == pytest.approx(kept.min())
    assert at(found.thrifty)[0] >= singles[0][best]
    assert at(found.thrifty)[1] < singles[1][best]


def test_a_router_that_never_keeps_the_accuracy_saves_nothing() -> None:
    predictions, data = random_system(queries=100)
    wrong = replace(predictions, correctness=1 - data.correct)
    found = choose_operating_points(Trial.join(wrong, data))
    assert found is not None
    assert found.thrifty is None
    judged = evaluate(wrong, data, resamples=5, chosen=found).headline
    assert judged["savings"].value == 0
    assert judged["savings_gain"].value == 0


def test_numbers_at_chosen_settings_are_those_of_these_settings() -> None:
    predictions, data = random_system(queries=150, missing=0.1, seed=4)
    trial = Trial.join(predictions, data)
    chosen = OperatingPoints(0.9, 0.4, 0.6, "t2")
    judged = evaluate(predictions, data, resamples=0, chosen=chosen).headline
    kept = trial.compared
    rows = np.flatnonzero(kept)
    accurate, thrifty = (trial.path.at(lam)[kept] for lam in (0.9, 0.4))
    single = data.correct[kept, 2].mean()
    assert judged["chosen_accuracy"].value == pytest.approx(data.correct[rows, accurate].mean())
    assert judged["chosen_gain"].value == pytest.approx(
        data.correct[rows, accurate].mean() - single
    )
    spent = data.observed_cost[rows, thrifty].mean() / data.observed_cost[kept, 2].mean()
    assert judged["savings"].value == pytest.approx(1 - spent)
    assert judged["savings_gain"].value == pytest.approx(
        data.correct[rows, thrifty].mean() - single
    )


def test_a_gain_where_little_is_right_does_not_stand_for_the_router() -> None:
    random = np.random.default_rng(4)
    hard = random.random((800, 1)) < 0.5
    correct = np.hstack([~hard, hard, random.random((800, 1)) < [[0.9]]]).astype(np.float64)
    correct[:, :2] *= random.random((800, 1)) < 0.7  # the cheap two: known which, often neither
    cost = np.tile([1.0, 1.1, 9.0], (800, 1))
    seen = np.hstack([0.7 * ~hard, 0.7 * hard, np.full((800, 1), 0.9)])
    trial = Trial.join(*system(seen, cost / 9, correct, cost))
    found = choose_operating_points(trial)
    assert found is not None
    assert found.best == trial.targets[2]
    at = trial.path.at(found.worth)
    single = correct[:, 2].mean()
    assert trial.correct[np.arange(800), at].mean() >= single
    cheap = trial.path.at(0.05)
    gain = [trial.correct[np.arange(800), c].mean() for c in (cheap, at)]
    assert gain[0] < single - 0.1  # where most is gained over a mix of the cheap two
