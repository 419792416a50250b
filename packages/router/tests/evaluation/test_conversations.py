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
    """Put each `turns` queries in a row into one conversation; the last query has none."""
    queries = tuple(
        replace(query, conversation=f"c{i // turns}" if i < len(dataset) - 1 else "")
        for i, query in enumerate(dataset.queries)
    )
    return replace(dataset, queries=queries)


def repeat_queries(
    predictions: Predictions, data: RoutingDataset, *, together: bool
) -> tuple[Predictions, RoutingDataset]:
    """Repeat each query `TURNS` times, in one conversation or as single queries."""
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
    repeats = RoutingDataset.of(
        queries, data.pool, data.correct[rows], recorded_cost=data.observed_cost[rows], **optional
    )
    again = Predictions(
        query_ids=repeats.query_ids,
        targets=predictions.targets,
        correctness=predictions.correctness[rows],
        estimated_cost=predictions.estimated_cost[rows],
        scale=predictions.scale,
    )
    return again, repeats


def test_no_conversation_is_in_two_parts_or_folds() -> None:
    dataset = in_conversations(make_routing_dataset(queries=200))
    name = dict(zip(dataset.query_ids, dataset.conversations or (), strict=True))
    for query_split in (split(dataset), split_by_time(dataset)):
        parts = [{name[i] for i in ids} for ids in query_split.parts.values()]
        assert all(parts)
        assert not set.intersection(*parts)
    folds = stratified_folds(dataset)
    of_fold = {(name[i], fold) for i, fold in zip(dataset.query_ids, folds.tolist(), strict=True)}
    assert len(of_fold) == len(set(name.values()))


def test_conversations_that_share_a_prompt_stay_together() -> None:
    dataset = in_conversations(make_routing_dataset(queries=120))
    queries = list(dataset.queries)
    queries[1] = replace(queries[1], prompt=queries[-3].prompt)
    query_split = split(replace(dataset, queries=tuple(queries)))
    (part,) = [ids for ids in query_split.parts.values() if queries[0].id in ids]
    assert {query.id for query in (*queries[:TURNS], *queries[-4:-1])} <= set(part)


def test_a_conversation_is_drawn_whole() -> None:
    groups = ["a", "b", "a", "c", "b", "a"]
    (weights,) = chunks(6, count=8, seed=0, width=1, groups=groups)
    for rows in ([0, 2, 5], [1, 4]):
        assert (weights[:, rows] == weights[:, rows[:1]]).all()
    assert (weights[:, [0, 1, 3]].sum(axis=1) == 3).all()


@pytest.mark.slow
def test_turns_that_repeat_each_other_tell_no_more_than_one() -> None:
    predictions, data = random_system(queries=120)
    width = {}
    for name, (system, labels) in {
        "once": (predictions, data),
        "turns": repeat_queries(predictions, data, together=True),
        "alone": repeat_queries(predictions, data, together=False),
    }.items():
        accuracy = evaluate(system, labels, resamples=400).headline["max_lam_accuracy"]
        width[name] = accuracy.upper - accuracy.lower
    assert width["turns"] == pytest.approx(width["once"], rel=0.25)
    assert width["alone"] < 0.7 * width["once"]


def test_the_value_of_a_policy_has_the_interval_of_its_conversations() -> None:
    predictions, log, _ = traffic(queries=400, error=0.1)
    once = PolicyValues.of(Trial.join(predictions, log)).at(0.5)
    turns, alone = (
        PolicyValues.of(Trial.join(*repeat_queries(predictions, log, together=together))).at(0.5)
        for together in (True, False)
    )
    for name in ("accuracy", "inverse"):
        of_queries, of_turns, of_repeats = (getattr(value, name) for value in (once, turns, alone))
        assert (of_turns.value, of_turns.upper) == pytest.approx(
            (of_queries.value, of_queries.upper)
        )
        assert of_repeats.upper - of_repeats.value < 0.6 * (of_queries.upper - of_queries.value)
    assert turns.effective == pytest.approx(once.effective)


def test_few_conversations_have_too_few_labels_however_many_turns_they_have() -> None:
    predictions, log, _ = traffic(queries=400)
    rows = [f"q{i}" for i in range(20)]
    few = predictions.select(rows, targets=predictions.targets), log.select(rows)
    overlap = Trial.join(*repeat_queries(*few, together=True)).overlap
    assert overlap is not None
    assert "equally weighted" in overlap.refusal


def test_conversations_are_kept_on_disk_and_in_merged_datasets(tmp_path: Path) -> None:
    dataset = in_conversations(make_routing_dataset(queries=20))
    write_dataset(dataset, tmp_path / "data")
    read = read_dataset(tmp_path / "data")
    assert read.queries == dataset.queries
    other = make_routing_dataset(queries=20)
    merged = merge({"one": other, "two": dataset}, prefer="first")
    assert merged.conversations == dataset.conversations


def test_the_error_of_a_mean_depends_on_conversations_and_not_on_their_length() -> None:
    once = paired_mean(np.ones(20))
    turns = paired_mean(np.ones(400), [f"c{i // 20}" for i in range(400)])
    assert turns == pytest.approx(once)
    of_one = paired_mean(np.ones(400), ["c"] * 400)
    assert of_one[1] == pytest.approx(1)


def test_one_conversation_has_no_interval_and_nothing_is_significant() -> None:
    predictions, data = random_system(queries=30)
    dataset = replace(data, queries=tuple(replace(q, conversation="c") for q in data.queries))
    evaluation = evaluate(predictions, dataset, resamples=50)
    accuracy = evaluation.headline["max_lam_accuracy"]
    assert np.isfinite(accuracy.value)
    assert np.isnan([accuracy.lower, accuracy.upper]).all()
    assert "one conversation" in evaluation.caution
    other = replace(predictions, correctness=1 - predictions.correctness)
    comparison = compare(predictions, other, dataset, resamples=50)
    assert comparison.difference["auc_mean"].value > 0
    assert not any(comparison.significant(name) for name in comparison.difference)


@pytest.mark.parametrize(("turns", "is_few"), [(4, True), (2, False)])
def test_few_conversations_are_counted_in_the_caution(turns: int, is_few: bool) -> None:
    predictions, data = random_system(queries=40)
    dataset = in_conversations(data, turns)
    evaluation = evaluate(predictions, dataset, resamples=4)
    number = len(set(dataset.conversations or ()))
    assert evaluation.conversations == number
    assert (f"{number} conversations" in evaluation.caution) == is_few
    alone = evaluate(predictions, data, resamples=4)
    assert "conversation" not in alone.caution
    assert alone.to_dict()["bootstrap"]["unit"] == "query"
    assert evaluation.to_dict()["bootstrap"]["unit"] == "conversation"
    systems = {"one": (predictions, Lambda())}
    note = paired(systems, dataset, resamples=4).to_dict()["bootstrap"]
    assert (note["unit"], note["conversations"]) == ("conversation", number)


def test_what_shares_a_prompt_or_a_conversation_with_learned_queries_is_not_unseen() -> None:
    dataset = make_routing_dataset(queries=12)
    assert find_unseen(dataset, dataset.query_ids[:4]) == list(dataset.query_ids[4:])
    turns = list(in_conversations(dataset).queries)
    turns[5] = replace(turns[5], prompt=turns[0].prompt)
    with_turns = replace(dataset, queries=tuple(turns))
    unseen = find_unseen(with_turns, [dataset.query_ids[0], "elsewhere"])
    assert unseen == [dataset.query_ids[row] for row in (4, *range(6, 12))]
