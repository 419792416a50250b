"""Turns of a conversation depend on each other: they are split, resampled and counted together."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.evaluation.logs import traffic
from packages.router.tests.evaluation.trials import random_system
from prefill_router.data import (
    RoutingDataset,
    find_unseen,
    merge,
    read_dataset,
    split,
    split_by_time,
    stratified_folds,
    write_dataset,
)
from prefill_router.evaluation import PolicyValues, Trial, compare, evaluate, paired, paired_mean
from prefill_router.evaluation.bootstrap import chunks
from prefill_router.policy import Lambda, Predictions
from prefill_router.testing import make_routing_dataset

TURNS = 4


def in_conversations(dataset: RoutingDataset, turns: int = TURNS) -> RoutingDataset:
    """The same queries, each `turns` in a row of one conversation, but for the last one."""
    queries = tuple(
        replace(query, conversation=f"c{i // turns}" if i < len(dataset) - 1 else "")
        for i, query in enumerate(dataset.queries)
    )
    return replace(dataset, queries=queries)


def repeated(
    predictions: Predictions, data: RoutingDataset, *, together: bool
) -> tuple[Predictions, RoutingDataset]:
    """Each query `TURNS` times, as the turns of one conversation or as queries by themselves."""
    rows = np.repeat(np.arange(len(data)), TURNS)
    queries = tuple(
        replace(
            data.queries[row], id=f"q{i}", conversation=data.queries[row].id if together else ""
        )
        for i, row in enumerate(rows)
    )
    optional = {
        name: None if (table := getattr(data, name)) is None else table[rows]
        for name in ("label_error", "propensity")
    }
    made = RoutingDataset.of(
        queries, data.pool, data.correct[rows], recorded_cost=data.observed_cost[rows], **optional
    )
    again = Predictions(
        query_ids=made.query_ids,
        targets=predictions.targets,
        correctness=predictions.correctness[rows],
        estimated_cost=predictions.estimated_cost[rows],
        scale=predictions.scale,
    )
    return again, made


def test_no_conversation_is_in_two_parts_or_folds() -> None:
    made = in_conversations(make_routing_dataset(queries=200))
    name = dict(zip(made.query_ids, made.conversations or (), strict=True))
    for drawn in (split(made), split_by_time(made)):
        parts = [{name[i] for i in ids} for ids in drawn.parts.values()]
        assert all(parts)
        assert not set.intersection(*parts)
    folds = stratified_folds(made)
    of_fold = {(name[i], fold) for i, fold in zip(made.query_ids, folds.tolist(), strict=True)}
    assert len(of_fold) == len(set(name.values()))


def test_conversations_that_share_a_prompt_stay_together() -> None:
    made = in_conversations(make_routing_dataset(queries=120))
    queries = list(made.queries)
    queries[1] = replace(queries[1], prompt=queries[-3].prompt)
    drawn = split(replace(made, queries=tuple(queries)))
    (part,) = [ids for ids in drawn.parts.values() if queries[0].id in ids]
    assert {query.id for query in (*queries[:TURNS], *queries[-4:-1])} <= set(part)


def test_a_conversation_is_drawn_whole() -> None:
    groups = ["a", "b", "a", "c", "b", "a"]
    (drawn,) = chunks(6, count=8, seed=0, width=1, groups=groups)
    for rows in ([0, 2, 5], [1, 4]):
        assert (drawn[:, rows] == drawn[:, rows[:1]]).all()
    assert (drawn[:, [0, 1, 3]].sum(axis=1) == 3).all()


@pytest.mark.slow
def test_turns_that_repeat_each_other_tell_no_more_than_one() -> None:
    predictions, data = random_system(queries=120)
    width = {}
    for name, (made, labels) in {
        "once": (predictions, data),
        "turns": repeated(predictions, data, together=True),
        "alone": repeated(predictions, data, together=False),
    }.items():
        found = evaluate(made, labels, resamples=400).headline["max_lam_accuracy"]
        width[name] = found.upper - found.lower
    assert width["turns"] == pytest.approx(width["once"], rel=0.25)
    assert width["alone"] < 0.7 * width["once"]


def test_the_value_of_a_policy_has_the_interval_of_its_conversations() -> None:
    predictions, log, _ = traffic(queries=400, error=0.1)
    once = PolicyValues.of(Trial.join(predictions, log)).at(0.5)
    turns, alone = (
        PolicyValues.of(Trial.join(*repeated(predictions, log, together=together))).at(0.5)
        for together in (True, False)
    )
    for name in ("accuracy", "inverse"):
        one, several, wrong = (getattr(value, name) for value in (once, turns, alone))
        assert (several.value, several.upper) == pytest.approx((one.value, one.upper))
        assert wrong.upper - wrong.value < 0.6 * (one.upper - one.value)
    assert turns.effective == pytest.approx(once.effective)


def test_few_conversations_have_too_few_labels_however_many_turns_they_have() -> None:
    predictions, log, _ = traffic(queries=400)
    rows = [f"q{i}" for i in range(20)]
    few = predictions.select(rows, targets=predictions.targets), log.select(rows)
    overlap = Trial.join(*repeated(*few, together=True)).overlap
    assert overlap is not None
    assert "equally weighted" in overlap.refusal


def test_conversations_are_kept_on_disk_and_in_merged_datasets(tmp_path: Path) -> None:
    made = in_conversations(make_routing_dataset(queries=20))
    write_dataset(made, tmp_path / "data")
    read = read_dataset(tmp_path / "data")
    assert read.queries == made.queries
    other = make_routing_dataset(queries=20)
    merged = merge({"one": other, "two": made}, prefer="first")
    assert merged.conversations == made.conversations


def test_the_error_of_a_mean_depends_on_conversations_and_not_on_their_length() -> None:
    once = paired_mean(np.ones(20))
    turns = paired_mean(np.ones(400), [f"c{i // 20}" for i in range(400)])
    assert turns == pytest.approx(once)
    one = paired_mean(np.ones(400), ["c"] * 400)
    assert one[1] == pytest.approx(1)


def test_one_conversation_has_no_interval_and_nothing_is_significant() -> None:
    predictions, data = random_system(queries=30)
    one = replace(data, queries=tuple(replace(q, conversation="c") for q in data.queries))
    evaluation = evaluate(predictions, one, resamples=50)
    accuracy = evaluation.headline["max_lam_accuracy"]
    assert np.isfinite(accuracy.value)
    assert np.isnan([accuracy.lower, accuracy.upper]).all()
    assert "one conversation" in evaluation.caution
    other = replace(predictions, correctness=1 - predictions.correctness)
    both = compare(predictions, other, one, resamples=50)
    assert both.difference["auc_mean"].value > 0
    assert not any(both.significant(name) for name in both.difference)


@pytest.mark.parametrize(("turns", "is_few"), [(4, True), (2, False)])
def test_few_conversations_are_counted_in_the_caution(turns: int, is_few: bool) -> None:
    predictions, data = random_system(queries=40)
    made = in_conversations(data, turns)
    evaluation = evaluate(predictions, made, resamples=4)
    number = len(set(made.conversations or ()))
    assert evaluation.conversations == number
    assert (f"{number} conversations" in evaluation.caution) == is_few
    alone = evaluate(predictions, data, resamples=4)
    assert "conversation" not in alone.caution
    assert alone.to_dict()["bootstrap"]["unit"] == "query"
    assert evaluation.to_dict()["bootstrap"]["unit"] == "conversation"
    systems = {"one": (predictions, Lambda())}
    note = paired(systems, made, resamples=4).to_dict()["bootstrap"]
    assert (note["unit"], note["conversations"]) == ("conversation", number)


def test_what_shares_a_prompt_or_a_conversation_with_learned_queries_is_not_unseen() -> None:
    made = make_routing_dataset(queries=12)
    assert find_unseen(made, made.query_ids[:4]) == list(made.query_ids[4:])
    turns = list(in_conversations(made).queries)
    turns[5] = replace(turns[5], prompt=turns[0].prompt)
    named = replace(made, queries=tuple(turns))
    unseen = find_unseen(named, [made.query_ids[0], "elsewhere"])
    assert unseen == [made.query_ids[row] for row in (4, *range(6, 12))]
