"""The verdict, the references that it is of, and the settings that are chosen on train rows."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system, system
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.evaluation import (
    WORTH,
    Estimate,
    FixedChoice,
    JudgedPart,
    LambdaSweep,
    ReferenceGain,
    References,
    ReferenceTable,
    SettingRule,
    Trial,
    Verdict,
    choose_operating_points,
    evaluate,
    judge,
    ones,
    paired_mean,
)
from prefill_router.policy import OperatingPoints
from prefill_router.targets import Pool, Target

pytestmark = pytest.mark.slow


def plant_signal(
    *, queries: int = 900, signal: float = 1.0, domain_signal: float = 0.0, seed: int = 0
) -> tuple[Trial, RoutingDataset]:
    """Three targets; the router knows how they differ (`signal`), or the domain shows it."""
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
    correctness = 1 / (1 + np.exp(-(own + base)))
    predictions, _ = system(correctness, np.tile([1.0, 2.0, 4.0], (size, 1)), correct, cost)
    ids = data.query_ids
    trial = Trial.join(predictions.select(ids[queries:]), data)
    return trial, data.select(ids[:queries])


def fit_references(train: RoutingDataset) -> References:
    """References of train rows; the router expects costs of 1, 2 and 4 dollars."""
    return References.fit(train, np.tile([0, 1 / 3, 1], (len(train), 1)))


def judge_trial(
    trial: Trial,
    train: RoutingDataset,
    *,
    lam: float | None = 0.8,
    points: OperatingPoints | None = None,
) -> Verdict:
    return judge([JudgedPart(trial, fit_references(train), points, lam)], resamples=100)


def some_rows(trial: Trial, rows: slice) -> Trial:
    names = ("query_ids", "correctness", "cost", "correct", "observed_cost", "domains")
    return replace(trial, **{name: getattr(trial, name)[rows] for name in names})


def test_the_mix_is_the_best_that_two_targets_make_at_any_cost() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        correct = (random.random((60, 5)) < random.random(5)).astype(np.float64)
        cost = np.tile(random.random(5), (60, 1))
        predictions, data = system(correct, cost, correct, cost)
        table = ReferenceTable.of(FixedChoice.mix(data), Trial.join(predictions, data))
        c, a = cost[0], correct.mean(axis=0)
        for at in np.linspace(c.min(), c.max(), 7):
            best = max(
                a[j] if c[j] == c[k] else np.interp(at, [c[j], c[k]], [a[j], a[k]])
                for j, k in product(range(5), repeat=2)
                if c[j] <= at <= c[k] or (j == k and c[j] <= at)
            )
            spending = table.spend(np.arange(60), at)
            assert spending.label.mean() == pytest.approx(best, abs=1e-9)  # corners are levels
            assert spending.cost.mean() <= at + 1e-9


def test_the_folds_of_a_table_may_have_other_corners() -> None:
    trial, train = plant_signal(signal=1.0)
    halves = [some_rows(trial, slice(400)), some_rows(trial, slice(400, None))]
    rules = [FixedChoice((0, 2), (1.0, 4.0)), FixedChoice((0, 1, 2), (1.0, 2.0, 4.0))]
    table = ReferenceTable.of_parts(rules, halves)
    assert table.label.shape[0] == len(trial)
    spending = table.spend(np.arange(len(trial)), 2.5)
    assert spending.cost.mean() == pytest.approx(2.5)
    everything = table.spend(np.arange(len(trial)), 99.0)
    assert np.array_equal(everything.label, trial.correct[:, 2])
    assert fit_references(train).mix.corners[-1] == 2


def test_knowing_the_domain_is_worth_something_where_domains_differ() -> None:
    trial, train = plant_signal(domain_signal=1.5)
    references = fit_references(train)
    tables = [
        ReferenceTable.of(rule, trial) for rule in (references.price, references.domains) if rule
    ]
    rows = np.arange(len(trial))
    price, domains = (table.spend(rows, 2.5).label.mean() for table in tables)
    assert domains > price + 0.05
    assert (
        References.from_dict(json.loads(json.dumps(references.to_dict()))).to_dict()
        == references.to_dict()
    )


def test_price_alone_beats_the_mix_where_costs_vary_and_are_known() -> None:
    """A cheap answer is chosen where it is cheap; nothing about right answers is known."""
    random = np.random.default_rng(0)
    size = 4000
    correct = (random.random((size, 2)) < [0.5, 0.7]).astype(np.float64)
    cost = np.stack([np.full(size, 1.0), random.choice([2.0, 20.0], size)], axis=1)
    _, dataset = system(np.full((size, 2), 0.5), cost, correct, cost)
    ids = dataset.query_ids
    predictions, _ = system(np.full((size, 2), 0.5), cost, correct, cost)
    trial = Trial.join(predictions.select(ids[2000:]), dataset)
    train = dataset.select(ids[:2000])
    references = References.fit(train, predictions.select(ids[:2000]).normalised_cost)
    rows = np.arange(len(trial))
    mix, price = (ReferenceTable.of(rule, trial) for rule in (references.mix, references.price))
    assert price.spend(rows, 3.0).label.mean() > mix.spend(rows, 3.0).label.mean() + 0.03


def test_without_costs_the_reference_is_the_best_target() -> None:
    trial, train = plant_signal(signal=1.5)
    free = RoutingDataset.of(train.queries, train.pool, train.correct)
    best = int(free.correct.mean(axis=0).argmax())
    assert FixedChoice.mix(free).corners == (best,)
    nothing = replace(trial, observed_cost=np.full(trial.correct.shape, np.nan))
    verdict = judge_trial(nothing, free, lam=1.0)
    assert verdict.setting.price is None
    assert len(verdict.curve) == 1
    assert verdict.setting.mix.gain.value == pytest.approx(verdict.setting.loss.value)
    assert verdict.word == "worth it"


def test_a_router_that_knows_what_parts_the_targets_is_worth_it() -> None:
    trial, train = plant_signal(signal=1.5)
    verdict = judge_trial(trial, train)
    assert verdict.word == "worth it"
    assert verdict.setting.mix.gain.lower > 0
    assert verdict.setting.price is not None
    assert verdict.setting.price.gain.lower > 0
    assert verdict.setting.domains is not None
    json.dumps(verdict.to_dict(), allow_nan=False)


def test_a_router_that_knows_nothing_is_not() -> None:
    trial, train = plant_signal(queries=6000)
    blind = np.random.default_rng(5).permutation(trial.correctness)
    verdict = judge_trial(replace(trial, correctness=blind), train)
    assert verdict.word == "not worth it"
    assert verdict.setting.mix.gain.value < 0
    assert verdict.needed == 0


def test_a_router_is_worth_it_for_less_money_where_its_setting_gains_nothing() -> None:
    """At its setting it sends everything to the best target; at less cost it gains a lot."""
    trial, train = plant_signal(queries=3000, signal=2.0)
    points = OperatingPoints(
        1.0, None, 1.0, "t2", level=1.0, budgets=((0.35, 0.3), (0.5, 0.5), (0.7, 0.7))
    )
    always = replace(trial, correctness=np.where(np.arange(3) == 2, 1.0, trial.correctness))
    constant = judge_trial(always, train, lam=1.0)
    assert constant.setting.mix.gain.value == pytest.approx(0, abs=1e-9)
    verdict = judge_trial(trial, train, lam=None, points=points)
    assert verdict.word == "worth it"
    names = ["setting", "level", "accurate", "0.35", "0.5", "0.7"]
    assert [point.name for point in verdict.curve] == names
    assert verdict.budgets["mix"].gain.lower > 0
    assert len(verdict.lines) == 3


def test_an_interval_never_collapses() -> None:
    trial, train = plant_signal(queries=100)
    always = replace(trial, correctness=np.tile([0.1, 0.2, 0.9], (len(trial), 1)))
    verdict = judge_trial(always, train, lam=1.0)
    assert verdict.setting.loss.value == 0
    assert verdict.setting.loss.lower < -0.01
    assert verdict.setting.loss.upper > 0.01


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    big, train = plant_signal(queries=40_000, signal=0.7, seed=8)
    references, unknown = fit_references(train), Estimate(np.nan, np.nan, np.nan)

    def gain(trial: Trial) -> Estimate:
        part = JudgedPart(trial, references, lam=0.8)
        return judge([part], choice_auc=unknown).setting.mix.gain

    truth, hits = gain(big).value, []
    for begin in range(0, 40_000, 200):
        estimate = gain(some_rows(big, slice(begin, begin + 200)))
        hits.append(estimate.lower <= truth <= estimate.upper)
    assert 0.90 <= np.mean(hits) <= 0.99


def test_few_queries_cannot_tell_and_it_is_said_how_many_would() -> None:
    trial, train = plant_signal(signal=0.25)
    verdict = judge_trial(some_rows(trial, slice(60)), train)
    assert verdict.word == "can't tell"
    assert verdict.needed > 60
    assert f"About {verdict.needed:,} judged queries" in verdict.because


def know_only_prices(
    *, queries: int, seed: int, noise: float = 0.02
) -> tuple[Trial, RoutingDataset]:
    """Costs differ between requests and are known; probabilities know nothing of the labels."""
    random = np.random.default_rng(seed)
    correct = (random.random((queries, 2)) < [0.5, 0.7]).astype(np.float64)
    price = random.choice([2.0, 20.0], queries)
    cost = np.stack([np.full(queries, 1.0), price], axis=1)
    guess = np.clip(random.normal([0.5, 0.7], noise, (queries, 2)), 0, 1)
    predictions, dataset = system(guess, cost, correct, cost)
    half = queries // 2
    trial = Trial.join(predictions.select(dataset.query_ids[half:]), dataset)
    return trial, dataset.select(dataset.query_ids[:half])


def judge_prices(trial: Trial, train: RoutingDataset, lam: float = 0.4) -> Verdict:
    scale = train.observed_cost.max()
    references = References.fit(train, (train.observed_cost - 1) / (scale - 1))
    return judge([JudgedPart(trial, references, lam=lam)], resamples=50)


def test_a_router_that_knows_only_prices_never_claims_to_beat_price_alone() -> None:
    words = []
    for seed in range(8):
        verdict = judge_prices(*know_only_prices(queries=6000, seed=seed))
        words.append(verdict.word)
        assert verdict.setting.price is not None
        assert not verdict.setting.price.exceeds(0)
        assert ("knows only the prices isn't surely worse" in verdict.because) == (
            verdict.word == "worth it"
        )
    assert set(words) <= {"worth it", "can't tell"}
    assert words.count("worth it") >= 6


def test_the_queries_that_are_needed_are_for_what_is_open() -> None:
    def count(gain: ReferenceGain, compared: int) -> float:
        effect = max(gain.gain.value, WORTH - gain.gain.value)
        return compared * (2.2414 * gain.error / effect) ** 2

    verdict = judge_prices(*know_only_prices(queries=1200, seed=0, noise=0.15))
    assert verdict.word == "worth it"
    assert verdict.setting.price is not None
    assert verdict.needed == pytest.approx(count(verdict.setting.price, verdict.compared), rel=0.35)
    trial, train = plant_signal(signal=0.25)
    few = judge_trial(some_rows(trial, slice(60)), train)
    assert few.word == "can't tell"
    assert few.needed == pytest.approx(count(few.setting.mix, few.compared), rel=0.35)


def test_settings_that_differ_between_folds_widen_the_interval() -> None:
    trial, train = plant_signal(queries=900, signal=1.0)
    references = fit_references(train)
    halves = [some_rows(trial, slice(450)), some_rows(trial, slice(450, None))]

    def error(*lams: float) -> float:
        parts = [
            JudgedPart(half, references, lam=lam) for half, lam in zip(halves, lams, strict=True)
        ]
        return judge(parts, resamples=20).setting.mix.error

    assert error(0.3, 0.95) > 1.2 * max(error(0.3, 0.3), error(0.95, 0.95))


def test_a_gain_on_unmeasured_subjects_is_no_gain() -> None:
    """Whole domains lack a target's labels, and a router sends them there; no label shows it."""
    trial, train = plant_signal(queries=2000, signal=0.0, seed=3)
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
    verdict = judge_trial(router, flat, lam=1.0)
    assert naive > 0.1
    assert verdict.word != "worth it"


def test_wrong_answers_that_are_missing_make_no_router_worth_it() -> None:
    """A copy of the best target whose failures have no label looks better and isn't."""
    trial, train = plant_signal(queries=4000, signal=0.0)
    correct, random = trial.correct.copy(), np.random.default_rng(1)
    twin = random.permutation(correct[:, 2])
    correct[:, 1] = np.where((twin == 0) & (random.random(len(twin)) < 0.5), np.nan, twin)
    sends = np.tile([0.1, 0.9, 0.8], (len(trial), 1))
    cost = np.where(np.isnan(correct), np.nan, [1.0, 4.1, 4.0])
    looks = replace(trial, correct=correct, observed_cost=cost, correctness=sends)
    same = train.correct.copy()
    same[:, 1] = random.permutation(same[:, 2])
    prices = np.tile([1.0, 4.1, 4.0], (len(train), 1))
    twin_train = RoutingDataset.of(train.queries, train.pool, same, recorded_cost=prices)
    verdict = judge_trial(looks, twin_train, lam=1.0)
    assert verdict.setting.mix.gain.lower > 0
    assert verdict.setting.mix.hidden > 0.05
    assert verdict.word != "worth it"


def test_answers_that_miss_at_random_cost_a_router_nothing() -> None:
    trial, train = plant_signal(signal=1.5)
    correct = np.where(np.random.default_rng(0).random((900, 3)) < 0.05, np.nan, trial.correct)
    verdict = judge_trial(replace(trial, correct=correct), train)
    assert verdict.setting.mix.hidden == 0
    assert verdict.word == "worth it"


def test_where_most_queries_cannot_be_compared_nothing_is_claimed() -> None:
    trial, train = plant_signal(signal=1.5)
    correct = trial.correct.copy()
    correct[np.arange(len(trial)) % 3 > 0, 2] = np.nan
    verdict = judge_trial(replace(trial, correct=correct), train)
    assert verdict.word == "can't tell"
    assert "only" in verdict.because


def test_the_setting_is_the_cheapest_that_surely_loses_little() -> None:
    trial, _ = plant_signal(queries=4000, signal=1.5)
    best = int(trial.correct.mean(axis=0).argmax())
    strict, loose = (
        choose_operating_points(trial, SettingRule(lose=points)) for points in (0.5, 8.0)
    )
    assert strict is not None
    assert loose is not None

    def measure(lam: float) -> tuple[float, float]:
        choice = trial.path.at(lam)
        loss = trial.correct[:, best] - trial.of_choice(trial.correct, choice)
        return float(loss.mean()), float(trial.of_choice(trial.observed_cost, choice).mean())

    for points_chosen, points in ((strict, 0.5), (loose, 8.0)):
        assert measure(points_chosen.setting)[0] < points / 100
        for lam in np.linspace(0, points_chosen.setting, 20)[:-2]:  # no cheaper one would do
            loss, error = paired_mean(
                trial.correct[:, best] - trial.of_choice(trial.correct, trial.path.at(float(lam)))
            )
            assert loss + error > points / 100 - 0.002
    assert measure(loose.setting)[1] < measure(strict.setting)[1]
    few = choose_operating_points(some_rows(trial, slice(80)), SettingRule(lose=2.0))
    assert few is not None
    assert measure(few.setting)[0] < 0.05  # cautious


def test_a_limit_on_cost_holds_and_a_goal_names_a_rule() -> None:
    trial, _ = plant_signal(queries=2000, signal=1.5)
    points = choose_operating_points(trial, SettingRule(lose=None, max_cost=2000.0))
    assert points is not None
    spent = trial.of_choice(trial.observed_cost, trial.path.at(points.setting)).mean()
    assert 1.8 < spent <= 2.0
    assert SettingRule.of_goal("balanced") == SettingRule()
    accurate = choose_operating_points(trial, SettingRule.of_goal("accuracy"))
    assert accurate is not None
    assert accurate.setting == accurate.accurate
    assert accurate.budgets[0] == (0.2, None)  # below the price of the cheapest target
    for share, lam in accurate.budgets[1:]:
        assert lam is not None
        budget = share * trial.observed_cost[:, trial.targets.index(accurate.best)].mean()
        assert trial.of_choice(trial.observed_cost, trial.path.at(lam)).mean() <= budget
    with pytest.raises(ConfigError, match="points of accuracy"):
        SettingRule(lose=-1.0)
    with pytest.raises(ConfigError, match="per 1,000 queries"):
        SettingRule(max_cost=0.0)


def test_operating_points_are_the_best_of_the_rows_they_are_chosen_on() -> None:
    trial, _ = plant_signal(signal=2.0)
    chosen = choose_operating_points(trial)
    assert chosen is not None
    points = LambdaSweep.of(trial).points(ones(len(trial)))
    singles = trial.correct.mean(axis=0), trial.observed_cost.mean(axis=0)
    best = int(singles[0].argmax())
    assert chosen.best == trial.targets[best]

    def at(lam: float) -> tuple[float, float]:
        choice = trial.path.at(lam)
        tables = (trial.correct, trial.observed_cost)
        return tuple(float(trial.of_choice(t, choice).mean()) for t in tables)  # type: ignore[return-value]

    assert at(chosen.accurate)[0] == pytest.approx(points.accuracy.max())
    assert chosen.thrifty is not None
    costs = points.cost[0][points.accuracy[0] >= singles[0][best]]
    assert at(chosen.thrifty)[1] == pytest.approx(costs.min())
    assert at(chosen.thrifty)[0] >= singles[0][best]
    assert at(chosen.thrifty)[1] < singles[1][best]


def test_a_router_that_never_keeps_the_accuracy_saves_nothing() -> None:
    predictions, data = random_system(queries=100)
    wrong = replace(predictions, correctness=1 - data.correct)
    chosen = choose_operating_points(Trial.join(wrong, data))
    assert chosen is not None
    assert chosen.thrifty is None
    headline = evaluate(wrong, data, resamples=5, chosen=chosen).headline
    assert headline["savings"].value == 0
    assert headline["savings_gain"].value == 0


def test_numbers_at_chosen_settings_are_those_of_these_settings() -> None:
    predictions, data = random_system(queries=150, missing=0.1, seed=4)
    trial = Trial.join(predictions, data)
    chosen = OperatingPoints(0.9, 0.4, 0.6, "t2")
    headline = evaluate(predictions, data, resamples=0, chosen=chosen).headline
    is_compared = trial.compared
    rows = np.flatnonzero(is_compared)
    accurate, thrifty = (trial.path.at(lam)[is_compared] for lam in (0.9, 0.4))
    single = data.correct[is_compared, 2].mean()
    assert headline["chosen_accuracy"].value == pytest.approx(data.correct[rows, accurate].mean())
    assert headline["chosen_gain"].value == pytest.approx(
        data.correct[rows, accurate].mean() - single
    )
    spent = data.observed_cost[rows, thrifty].mean() / data.observed_cost[is_compared, 2].mean()
    assert headline["savings"].value == pytest.approx(1 - spent)
    assert headline["savings_gain"].value == pytest.approx(
        data.correct[rows, thrifty].mean() - single
    )
