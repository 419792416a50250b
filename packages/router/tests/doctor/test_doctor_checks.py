"""The doctor's checks on routers of known worth."""

import json
from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.doctor.patients import patient, with_parts
from prefill_router.data import Query, RoutingDataset
from prefill_router.doctor import Checkup, Subject, examine
from prefill_router.doctor.confidence import distances, probabilities, probe, prompts
from prefill_router.doctor.fixed_choice import lifts, shuffle, strata, switching
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import judge
from prefill_router.evaluation.fixed_mix import FixedChoice, envelope as upper

pytestmark = pytest.mark.slow


def envelope(train: RoutingDataset) -> np.ndarray:
    return np.array(FixedChoice.mix(train).corners)


def examine_subject(subject: Subject, **options: object) -> Checkup:
    return examine(subject, **{"resamples": 200, "shuffles": 200, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("knows", "worth it"),
        ("random", "not worth it"),
        ("constant", "not worth it"),
    ],
)
def test_the_verdict_is_what_the_router_is_worth(kind: str, verdict: str) -> None:
    checkup = examine_subject(patient(kind))
    assert checkup.verdict == verdict, checkup.because
    json.dumps(checkup.to_dict(), allow_nan=False)


def test_few_queries_leave_the_verdict_open() -> None:
    verdicts = [examine_subject(patient("knows", queries=10, seed=s)).verdict for s in range(5)]
    assert verdicts.count("can't tell") >= 3


def test_a_router_that_knows_nothing_is_rarely_worth_it() -> None:
    worth = [
        examine_subject(patient("random", queries=300, seed=s), resamples=100, shuffles=60).verdict
        for s in range(8)
    ]
    assert worth.count("worth it") <= 1


def test_the_shuffled_control_has_the_mean_that_its_shares_imply() -> None:
    subject = patient("knows")
    control = shuffle(subject, count=400)
    assert control is not None
    shares = np.bincount(subject.choice, minlength=3) / len(subject)
    assert control.anywhere.mean() == pytest.approx(
        shares @ subject.trial.correct.mean(axis=0), abs=0.003
    )
    # each target costs the same everywhere
    assert control.cost == pytest.approx(subject.cost.mean())
    groups = strata(subject)
    expected = sum(
        (
            np.bincount(subject.choice[groups == g], minlength=3)
            @ subject.trial.correct[groups == g].mean(axis=0)
        )
        for g in range(4)
    ) / len(subject)
    assert control.within.mean() == pytest.approx(expected, abs=0.003)


def test_the_p_value_of_a_router_that_knows_nothing_is_uniform() -> None:
    controls = [
        shuffle(patient("random", queries=150, trained=50, seed=s), count=19, seed=s)
        for s in range(60)
    ]
    small = [control.p_value for control in controls if control is not None]
    assert len(small) == 60
    assert 0.3 < np.mean(small) < 0.7
    assert np.mean(np.array(small) <= 0.1) < 0.3


def test_one_choice_for_all_can_be_shuffled_but_not_beaten() -> None:
    control = shuffle(patient("constant", lam=1), count=20)
    assert control is not None
    assert control.p_value == 1
    assert control.gain == pytest.approx(0)


def test_the_envelope_is_concave_and_nothing_lies_above_it() -> None:
    train = patient("knows", queries=50).train
    corners = envelope(train)
    cost, accuracy = train.observed_cost.mean(axis=0), train.correct.mean(axis=0)
    slopes = np.diff(accuracy[corners]) / np.diff(cost[corners])
    assert (slopes > 0).all()
    assert (np.diff(slopes) < 0).all()
    above = np.interp(cost, cost[corners], accuracy[corners])
    assert (accuracy <= above + 1e-12).all()


def test_the_envelope_is_that_of_the_evaluation() -> None:
    for seed in range(20):
        train = patient("knows", queries=20, trained=40, seed=seed).train
        random = np.random.default_rng(seed)
        cost = np.broadcast_to(random.permutation([0.001, 0.004, 0.02]), train.correct.shape)
        train = replace(train, recorded_cost=cost.copy())
        mean = train.observed_cost.mean(axis=0), train.correct.mean(axis=0)
        expected = upper(mean[0][None], mean[1][None])
        corners = envelope(train)
        for got, best in zip(mean, expected, strict=True):
            assert got[corners] == pytest.approx(best[0][~np.isnan(best[0])][: len(corners)])


def test_a_mix_beats_the_target_between_when_that_one_is_bad() -> None:
    subject = patient("constant", lam=1)
    train, correct = subject.train, subject.train.correct.copy()
    correct[:, 1] = 0
    assert envelope(replace(train, correct=correct)).tolist() == [0, 2]


def test_a_fixed_choice_gains_nothing_over_the_mix() -> None:
    subject = patient("constant", lam=1)
    assert switching(subject).rate == 0
    mix = judge(subject.parts, resamples=50).setting.mix
    assert mix.gain.value == pytest.approx(0)
    assert mix.gain.lower < 0 < mix.gain.upper


def test_without_costs_the_mix_is_the_best_single_target() -> None:
    subject = patient("knows", lam=1)
    lost = np.full_like(subject.train.recorded_cost, np.nan)
    free = with_parts(
        replace(
            subject,
            trial=replace(subject.trial, observed_cost=lost[: len(subject)]),
            train=replace(subject.train, recorded_cost=lost),
        )
    )
    setting = judge(free.parts, resamples=20).setting
    mix = setting.mix
    assert envelope(free.train).tolist() == [free.best]
    assert setting.price is None
    assert mix.accuracy == pytest.approx(free.trial.correct[:, free.best].mean())
    json.dumps(examine_subject(free).to_dict(), allow_nan=False)


def test_lifts_are_paired_differences_and_sum_up() -> None:
    subject = patient("knows")
    parts = lifts(subject, resamples=100, seed=0)
    gained = subject.label - subject.trial.correct[:, subject.best]
    by_name = {part.name: part for part in parts}
    assert by_name["all queries"].lift.value == pytest.approx(gained.mean())
    domains = [part for part in parts if part.group == "domain"]
    assert [part.name for part in sorted(domains, key=lambda o: o.name)] == ["d0", "d1", "d2", "d3"]
    mean = sum(part.queries * part.lift.value for part in domains) / len(subject)
    assert mean == pytest.approx(gained.mean())
    agreed = [part.lift.value for part in parts if part.name in ("all correct", "all incorrect")]
    assert agreed == [0.0, 0.0]


def test_small_domains_are_pooled() -> None:
    subject = patient("knows", queries=100)
    rows = [
        Query(q.id, q.prompt, domain="big" if i < 80 else f"small {i}")
        for i, q in enumerate(subject.queries)
    ]
    parts = lifts(replace(subject, queries=tuple(rows)), resamples=20, seed=0)
    assert {(o.name, o.queries) for o in parts if o.group == "domain"} == {
        ("big", 80),
        ("20 small ones", 20),
    }


def test_sure_of_many_needs_more_than_sure_of_one() -> None:
    subject = patient("random", queries=400)
    rows = [replace(q, domain=f"d{i % 10}") for i, q in enumerate(subject.queries)]
    parts = lifts(replace(subject, queries=tuple(rows)), resamples=200, seed=0)
    for part in parts:
        if part.sure:
            assert part.lift.lower > 0 or part.lift.upper < 0


def test_switching_counts() -> None:
    switches = switching(patient("knows"))
    assert switches.shares.sum() == pytest.approx(1)
    assert 1 < switches.effective <= 3
    assert switches.rate == pytest.approx(1 - switches.shares.max())


@pytest.mark.parametrize(("kind", "sign"), [("knows", "good"), ("surer", "bad")])
def test_probabilities_that_are_too_high_are_seen(kind: str, sign: str) -> None:
    finding = next(f for f in examine_subject(patient(kind)).findings if f.name == "calibration")
    assert finding.sign == sign
    assert finding.numbers["overconfidence_of_the_chosen"]["value"] == pytest.approx(
        0.16 if kind == "surer" else 0, abs=0.06
    )


def test_the_calibration_error_has_its_level_by_chance_and_an_interval() -> None:
    sound, off = (probabilities(patient(kind), resamples=60, seed=0) for kind in ("knows", "surer"))
    assert sound.calibration_error.lower == 0
    assert sound.by_chance == pytest.approx(sound.calibration_error.value, abs=0.02)
    assert off.calibration_error.lower > 0.05
    assert off.calibration_error.value > 5 * off.by_chance


def test_distances_are_those_of_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    train, other = random.normal(size=(50, 4)) * [1, 5, 0.1, 1], random.normal(size=(7, 4))
    train[:, 3] = 2.0  # a constant feature isn't scaled
    scaled = [
        part / np.where(train.std(axis=0) > 0, train.std(axis=0), 1) for part in (train, other)
    ]
    plain = [np.sort(np.linalg.norm(scaled[0] - row, axis=1))[:10].mean() for row in scaled[1]]
    assert distances(train, other) == pytest.approx(plain)
    assert len(distances(random.normal(size=(5000, 2)), other[:, :2])) == 7
    with pytest.raises(DataError, match="no train rows"):
        distances(train[:0], other)


def test_overconfidence_far_away_is_seen_and_told_from_confidence_near() -> None:
    subject = patient("knows")
    far = np.arange(len(subject), dtype=np.float64)
    tail = far >= 0.8 * len(subject)
    surer = np.where(
        tail[:, None], np.minimum(subject.trial.correctness + 0.2, 1), subject.trial.correctness
    )
    changed = replace(subject, trial=replace(subject.trial, correctness=surer))
    for examined, sign in ((subject, ("good", "unclear")), (changed, ("bad",))):
        checkup = examine_subject(examined, distances=far)
        finding = next(f for f in checkup.findings if f.name == "distance")
        assert finding.sign in sign
        assert [region.queries for region in checkup.regions] == [180] * 5


def test_domains_that_were_not_trained_on_are_a_region_of_their_own() -> None:
    subject = patient("knows", queries=60)
    rows = (*subject.queries[:50], *(replace(q, domain="new") for q in subject.queries[50:]))
    checkup = examine_subject(replace(subject, queries=rows), distances=np.zeros(60))
    assert (checkup.regions[-1].name, checkup.regions[-1].queries) == (
        "benchmarks and domains not trained on",
        10,
    )


@pytest.mark.parametrize(("sure", "sign"), [(0.99, "bad"), (0.2, "good")])
def test_confidence_on_nonsense_is_seen(sure: float, sign: str) -> None:
    texts: list[str] = []

    def highest(prompts: list[str]) -> np.ndarray:
        texts.extend(prompts)
        return np.full(len(prompts), sure)

    checkup = examine_subject(patient("knows", queries=200), probe=probe(highest))
    assert next(f for f in checkup.findings if f.name == "nonsense").sign == sign
    assert texts == [text for kind in prompts().values() for text in kind]
    assert all(text for text in texts)
    assert len(texts) == 40


def test_the_same_seed_gives_the_same_checkup() -> None:
    first, second = (examine_subject(patient("knows", queries=200)).to_dict() for _ in range(2))
    assert first == second


def test_what_cant_be_examined_is_refused() -> None:
    subject = patient("knows", queries=30)
    with pytest.raises(ConfigError, match="needs at least 20"):
        examine(subject, resamples=0)
    with pytest.raises(ConfigError, match="lam is 2"):
        replace(subject, lam=2)
    with pytest.raises(DataError, match="in its order"):
        replace(subject, queries=subject.queries[::-1])
    with pytest.raises(DataError, match="select the router's"):
        replace(subject, train=subject.train.select(targets=["t0"]))
    with pytest.raises(DataError, match="score more answers"):
        replace(subject, trial=replace(subject.trial, correct=np.full((30, 3), np.nan)))


def test_of_one_conversation_the_doctor_calls_nothing_sure() -> None:
    alone = patient("knows", queries=200)
    trial = replace(alone.trial, conversations=("c",) * len(alone))
    checkup = examine_subject(with_parts(replace(alone, trial=trial)))
    assert checkup.verdict == "can't tell"
    assert not any(part.sure for part in checkup.lifts)
    signs = {finding.name: finding.sign for finding in checkup.findings}
    assert signs["calibration"] == "unclear"
    assert signs["lift"] == "note"
    assert any("one conversation" in note for note in checkup.notes)
