"""The lift by parts: how often a part is named without a lift, and with one."""

from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import system
from prefill_router.data import Query, RoutingDataset
from prefill_router.doctor import Subject
from prefill_router.doctor.fixed_choice import lifts
from prefill_router.evaluation import Trial, mean_over

pytestmark = pytest.mark.slow

SIZES = np.repeat(np.arange(14), [60, *[30] * 13])
LEFT = 0.5
COST = np.broadcast_to([1e-3, 1e-3], (len(SIZES), 2)).copy()


def subject(*, seed: int, helped: int = -1) -> Subject:
    """Two equally good targets, and a router that seldom leaves the first, at random.

    In the domain that is `helped` it leaves it where the other one is right.
    """
    random = np.random.default_rng(seed)
    correct = (random.random((len(SIZES), 2)) < 0.5).astype(np.float64)
    leaves = random.random(len(SIZES)) < LEFT
    leaves = np.where(helped == SIZES, correct[:, 1] > correct[:, 0], leaves)
    correctness = np.stack([0.5 - 0.2 * leaves, 0.3 + 0.2 * leaves], axis=1)
    predictions, data = system(correctness, COST, correct, COST)
    rows = [
        Query(q.id, q.prompt, domain=f"d{SIZES[i]}", benchmark=f"b{i % 7}")
        for i, q in enumerate(data.queries)
    ]
    data_with_domains = RoutingDataset.of(rows, data.pool, correct, recorded_cost=COST)
    trial = Trial.join(predictions, data_with_domains)
    first_is_best = np.tile([1.0, 0.0], (len(rows), 1))
    train = replace(data_with_domains, correct=first_is_best)
    return Subject(trial, data_with_domains.queries, train, lam=1.0, parts=())


def test_where_there_is_no_lift_some_part_is_named_in_five_of_a_hundred() -> None:
    draws = 120
    count = sum(
        any(
            part.sure for part in lifts(subject(seed=s), resamples=2, seed=s) if part.group != "all"
        )
        for s in range(draws)
    )
    assert count <= draws * 0.05 + 2 * np.sqrt(draws * 0.05 * 0.95)


def test_a_part_with_a_lift_is_named_and_no_other() -> None:
    parts = {
        part.name: part
        for part in lifts(subject(seed=1, helped=0), resamples=50, seed=0)
        if part.group == "domain"
    }
    assert parts["d0"].sure == 1
    assert [name for name, part in parts.items() if part.sure] == ["d0"]


def test_parts_that_never_differ_are_not_sure() -> None:
    still = subject(seed=0)
    same = replace(still, trial=replace(still.trial, correctness=np.tile([0.5, 0.3], (450, 1))))
    assert not any(part.sure for part in lifts(same, resamples=5, seed=0))


def in_turns(alone: Subject, turns: int, *, together: bool) -> Subject:
    """Repeat each query `turns` times, in one conversation or as single queries."""
    rows = np.repeat(np.arange(len(alone)), turns)
    old = alone.trial
    queries = tuple(
        replace(
            alone.queries[row],
            id=f"r{i}",
            conversation=alone.queries[row].id if together else "",
        )
        for i, row in enumerate(rows.tolist())
    )
    trial = replace(
        old,
        query_ids=tuple(query.id for query in queries),
        correctness=old.correctness[rows],
        cost=old.cost[rows],
        correct=old.correct[rows],
        observed_cost=old.observed_cost[rows],
        domains=tuple(old.domains[row] for row in rows),
        conversations=tuple(f"c{row}" for row in rows) if together else None,
    )
    return replace(alone, trial=trial, queries=queries)


def test_turns_that_repeat_each_other_make_no_lift_surer() -> None:
    alone = subject(seed=0)
    once, turns, apart = (
        lifts(case, resamples=400, seed=0)
        for case in (alone, in_turns(alone, 10, together=True), in_turns(alone, 10, together=False))
    )
    assert [part.sure for part in turns] == [part.sure for part in once]
    assert any(part.sure for part in apart)
    widths = [some[0].lift.upper - some[0].lift.lower for some in (once, turns, apart)]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
    assert widths[2] < 0.5 * widths[0]


def test_a_statistic_of_the_doctor_has_the_interval_of_its_conversations() -> None:
    alone = subject(seed=0)
    widths = []
    for case in (alone, in_turns(alone, 10, together=True)):
        estimate = case.estimate(
            lambda w, case=case: mean_over(w, case.label), resamples=400, seed=0
        )
        widths.append(estimate.upper - estimate.lower)
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
