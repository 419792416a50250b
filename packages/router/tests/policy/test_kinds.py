from collections.abc import Callable

import numpy as np
import pytest

from packages.router.tests.policy.tables import NAMES, random_tables
from prefill_router.errors import ConfigError, CorruptError, UpstreamError
from prefill_router.policy import Cascade, Threshold, Tiered, Tolerance, from_dict

P = np.array([[0.5, 0.75, 0.625]])
C = np.array([[0.0, 1.0, 0.5]])


def test_tolerance_by_hand() -> None:
    path = Tolerance().path(P, C)
    assert path.target.tolist() == [0, 2, 1]
    assert path.lam.tolist() == [0, 0.75, 0.875]
    assert path.at(0.75).tolist() == [0]
    assert path.at(0.7501).tolist() == [2]


def test_tolerance_at_1_leaves_the_best_even_to_the_last_bit() -> None:
    nearly = np.nextafter(0.1, 0)
    assert 1 - (0.1 - nearly) == 1
    chosen = Tolerance().choose(np.array([[nearly, 0.1]]), np.array([[0.0, 1.0]]), 1.0)
    assert chosen.tolist() == [1]


def test_a_target_that_never_fails_and_one_that_always_does() -> None:
    p, c = np.array([[0.0, 1.0]]), np.array([[0.0, 1.0]])
    assert Tolerance().choose(p, c, 0.0).tolist() == [0]
    assert Tolerance().choose(p, c, 1e-300).tolist() == [1]


def test_threshold_compares_its_win_score_with_at_least() -> None:
    p = np.array([[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]])
    policy = Threshold(strong="s", weak="w")
    targets = ("w", "s")
    assert policy.win_score(p, targets=targets).tolist() == [0.75, 0.5, 0.25]
    for threshold, strong in ((0.75, 1), (0.7501, 0), (0.5, 2), (0.25, 3), (0.0, 3), (1.0, 0)):
        chosen = policy.choose(p, np.zeros_like(p), 1 - threshold, targets=targets)
        assert chosen.sum() == strong, threshold


def test_thresholds_ends_are_the_two_targets_alone() -> None:
    p = np.array([[0.0, 1.0], [1.0, 0.0]])
    policy = Threshold(strong="s", weak="w")
    assert policy.choose(p, p, 0.0, targets=("w", "s")).tolist() == [0, 0]
    assert policy.choose(p, p, 1.0, targets=("w", "s")).tolist() == [1, 1]


@pytest.mark.parametrize("score", ["difference", "weak"])
def test_the_share_of_strong_calls_rises(score: str) -> None:
    correctness, cost = random_tables(seed=1)
    policy = from_dict({"kind": "threshold", "strong": "a", "weak": "f", "score": score})
    shares = [
        (policy.choose(correctness, cost, at, targets=NAMES) == 0).mean()
        for at in np.linspace(0, 1, 21).tolist()
    ]
    assert shares[0] == 0
    assert shares[-1] == 1
    assert (np.diff(shares) >= 0).all()


def test_two_tiers_by_hand() -> None:
    path = Tiered().path(P, C)
    # The cheaper two make the first tier; the second is asked for what the first can't reach.
    assert path.target.tolist() == [2, 1]
    assert path.lam.tolist() == [0, 0.625]


def test_tiers_of_equal_costs_are_one_tier() -> None:
    path = Tiered(count=3).path(P, np.zeros((1, 3)))
    assert path.target.tolist() == [1]


def test_a_target_in_no_tier_never_answers() -> None:
    correctness, cost = random_tables(seed=2)
    path = Tiered(tiers=(("a",), ("b", "c"))).path(correctness, cost, targets=NAMES)
    assert set(path.target.tolist()) == {0, 1, 2}


def test_a_cascade_pays_for_everyone_asked() -> None:
    observed = np.array([[1.0, 10.0, 100.0], [2.0, np.nan, 200.0]])
    cost = np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]])
    charged = Cascade().charge(observed, cost)
    np.testing.assert_array_equal(charged, [[1, 11, 111], [np.nan, np.nan, 200]])
    named = Cascade(targets=("z", "x")).charge(observed, cost, targets=("x", "y", "z"))
    np.testing.assert_array_equal(named, [[101, np.nan, 100], [202, np.nan, 200]])


def test_other_policies_pay_for_the_answer_alone() -> None:
    observed = np.array([[1.0, np.nan]])
    assert Tolerance().charge(observed, np.zeros((1, 2))) is observed


def test_what_a_cascade_has_paid_never_falls() -> None:
    scores, cost = random_tables(seed=3)
    path = Cascade().path(scores, cost)
    paid = Cascade().charge(cost * 7 + 1, cost)
    same = np.diff(path.query) == 0
    assert (np.diff(paid[path.query, path.target])[same] > 0).all()


ANSWERS = {"small": 0.2, "middle": 0.6, "large": 0.4}


def test_a_cascade_online_asks_until_an_answer_passes() -> None:
    names: list[str] = []

    def ask(name: str) -> str:
        names.append(name)
        return f"by {name}"

    cascade = Cascade(targets=("small", "middle", "large"))
    run = cascade.run(ask, lambda name, _: ANSWERS[name], at=0.5)
    assert (run.target, run.answer, names) == ("middle", "by middle", ["small", "middle"])
    assert [(step.target, step.score) for step in run.trail] == [("small", 0.2), ("middle", 0.6)]
    last = Cascade().run(ask, lambda name, _: ANSWERS[name], at=1.0, targets=tuple(ANSWERS))
    assert last.target == "large"
    assert len(last.trail) == 3


@pytest.mark.parametrize("at", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_online_and_on_record_agree(at: float) -> None:
    scores, cost = random_tables(queries=30, seed=4)
    chosen = Cascade().choose(scores, cost, at)
    for query, turns in enumerate(np.argsort(cost, axis=1)):
        run = Cascade().run(
            NAMES.index,
            lambda _, answer, query=query: float(scores[query, answer]),
            at=at,
            targets=tuple(NAMES[k] for k in turns),
        )
        assert run.answer == chosen[query]


def fail_for(*broken: str) -> Callable[[str], str]:
    def ask(name: str) -> str:
        if name in broken:
            raise UpstreamError("it is down", failure="overloaded")
        return name

    return ask


def test_a_cascade_passes_over_a_target_that_fails() -> None:
    names = tuple(ANSWERS)
    run = Cascade().run(fail_for("small"), lambda n, _: ANSWERS[n], at=0.5, targets=names)
    assert run.answer == "middle"
    assert run.trail[0].failure == "overloaded"
    assert run.trail[0].score is None
    best = Cascade().run(fail_for("large"), lambda n, _: ANSWERS[n], at=0.9, targets=names)
    assert best.answer == "middle"
    with pytest.raises(UpstreamError, match="down"):
        Cascade().run(fail_for(*names), lambda n, _: ANSWERS[n], at=0.9, targets=names)


def test_options_that_make_no_sense_are_refused() -> None:
    correctness, cost = random_tables(queries=2)
    for wrong in (
        lambda: Threshold(strong="a", weak="a"),
        lambda: Threshold(strong="a", weak="z").path(correctness, cost, targets=NAMES),
        lambda: Tiered(count=1),
        lambda: Tiered(tiers=(("a",),)),
        lambda: Tiered(tiers=(("a",), ())),
        lambda: Tiered(tiers=(("a",), ("a", "b"))),
        lambda: Tiered(tiers=(("a",), ("z",))).path(correctness, cost, targets=NAMES),
        lambda: Cascade(targets=("a", "a")),
        lambda: Cascade().path(correctness * 2, cost),
        lambda: Cascade().run(str, lambda *_: 0.5, at=0.5),
        lambda: Cascade().run(str, lambda *_: 0.5, at=2, targets=("a",)),
        lambda: Cascade().run(str, lambda *_: 1.5, at=0.5, targets=("a",)),
    ):
        with pytest.raises(ConfigError):
            wrong()


@pytest.mark.parametrize(
    "saved",
    [
        {"kind": "threshold", "strong": "a"},
        {"kind": "threshold", "strong": 1, "weak": "b"},
        {"kind": "threshold", "strong": "a", "weak": "b", "score": "p"},
        {"kind": "tiered", "count": "2"},
        {"kind": "tiered", "count": True},
        {"kind": "tiered", "tiers": ["ab", "c"]},
        {"kind": "cascade", "targets": [1]},
        {"kind": "lambda", "lam": 0.5},
    ],
)
def test_saved_options_of_the_wrong_type_are_refused(saved: dict[str, object]) -> None:
    with pytest.raises(CorruptError):
        from_dict(saved)
