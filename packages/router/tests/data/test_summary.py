"""The summary of a dataset, against counts by hand and a slow reference."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from prefill_router.data import Query, Regime, RoutingDataset, summarise
from prefill_router.targets import Pool, Target
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

NAN = float("nan")


def build_dataset(labels: list[list[float]], **tables: list[list[float]]) -> RoutingDataset:
    queries = [
        Query(f"q{i}", f"prompt {i % 4}", benchmark=f"b{i % 2}", domain="" if i else "d")
        for i in range(len(labels))
    ]
    pool = Pool(
        (
            Target(name="free"),
            Target(name="cheap", input_price=1, output_price=2),
            Target(name="dear", input_price=10, output_price=20),
        )
    )
    arrays = {name: np.array(table, dtype=np.float64) for name, table in tables.items()}
    return RoutingDataset.of(queries, pool, np.array(labels, dtype=np.float64), **arrays)


def test_a_dataset_counted_by_hand() -> None:
    labels = [[1, 1, 1], [0, 0, NAN], [0, 1, 0], [NAN, NAN, NAN], [NAN, 0.5, 0.75]]
    tokens = [[10.0, 10, 10]] * 5
    dataset = build_dataset(labels, input_tokens=tokens, output_tokens=tokens)
    summary = summarise(dataset).whole
    assert (summary.queries, summary.distinct_prompts, summary.unmeasured) == (5, 4, 1)
    assert [t.missing for t in summary.targets] == [2, 1, 2]
    assert [t.accuracy for t in summary.targets] == [1 / 3, 2.5 / 4, 1.75 / 3]
    assert summary.compared == 2
    assert (summary.best_single, summary.best_single_accuracy) == ("cheap", 1)
    assert summary.oracle_accuracy == 1
    assert summary.regimes == {
        Regime.ALL_CORRECT: 2,
        Regime.ALL_INCORRECT: 1,
        Regime.DISAGREEMENT: 1,
    }
    assert summary.share(Regime.ALL_CORRECT) == 0.5
    assert summary.targets[0].mean_cost is None
    assert [t.mean_cost for t in summary.targets[1:]] == pytest.approx([30 / 1e6, 300 / 1e6])
    assert [t.costs_known for t in summary.targets] == [0, 5, 5]


def test_queries_with_one_label_are_counted() -> None:
    labels = [[1, NAN, NAN], [0, 0, NAN], [NAN, NAN, NAN], [NAN, NAN, 0]]
    assert summarise(build_dataset(labels)).whole.single_label == 2


def test_one_label_makes_no_best_target() -> None:
    alone = summarise(build_dataset([[1, NAN, NAN], [NAN, NAN, NAN]])).whole
    assert (alone.best_single, alone.best_single_accuracy) == (None, None)
    assert alone.targets[0].accuracy == 1
    lucky = [[1, NAN, NAN], [NAN, 1, 0], [NAN, 1, 0], [NAN, 0, 1], [NAN, 1, NAN]]
    summary = summarise(build_dataset(lucky)).whole
    assert (summary.best_single, summary.best_single_accuracy) == ("cheap", 2 / 3)
    assert (summary.compared, summary.oracle_accuracy) == (3, 1)
    assert (alone.compared, alone.oracle_accuracy) == (0, None)


def test_labels_that_are_missing_where_questions_are_hard_flatter_nobody() -> None:
    hard = [[NAN, 1, 0], [NAN, 0, 0]] * 10
    easy = [[1, 1, 1], [0, 1, 1]] * 10
    summary = summarise(build_dataset([*hard, *easy])).whole
    assert [t.accuracy for t in summary.targets] == [0.5, 0.75, 0.5]
    assert (summary.best_single, summary.compared) == ("cheap", 20)
    assert (summary.best_single_accuracy, summary.oracle_accuracy) == (1, 1)
    rare = [[NAN, 1, 0]] * 30 + [[NAN, 0, 1]] * 6 + [[1, 0, 0]] * 3
    summary = summarise(build_dataset(rare)).whole
    assert (summary.best_single, summary.compared) == ("cheap", 39)
    apart = summarise(build_dataset([[1, NAN, NAN], [NAN, 1, NAN], [NAN, NAN, 0]] * 5)).whole
    assert (apart.best_single, apart.compared, apart.oracle_accuracy) == (None, 0, None)


def test_recorded_cost_comes_before_the_price_list() -> None:
    dataset = build_dataset([[1, 1, 1], [1, 1, 1]], recorded_cost=[[0.5, NAN, 2], [1.5, NAN, NAN]])
    costs = [(t.mean_cost, t.costs_known) for t in summarise(dataset).whole.targets]
    assert costs == [(1, 2), (None, 0), (2, 1)]


def test_a_dataset_without_labels() -> None:
    summary = summarise(build_dataset([[NAN] * 3] * 2)).whole
    assert (summary.best_single, summary.best_single_accuracy, summary.oracle_accuracy) == (
        None,
    ) * 3
    assert summary.share(Regime.DISAGREEMENT) is None
    assert summary.unmeasured == 2


def test_parts_hold_what_the_parts_alone_hold() -> None:
    dataset = make_routing_dataset(queries=60, missing=0.3, benchmarks=3)
    summary = summarise(dataset)
    for name, part in summary.by_benchmark.items():
        ids = [query.id for query in dataset.queries if query.benchmark == name]
        assert part == summarise(dataset.select(ids)).whole
    for parts in (summary.by_benchmark, summary.by_domain):
        assert sum(part.queries for part in parts.values()) == 60
        for regime, count in summary.whole.regimes.items():
            assert sum(part.regimes[regime] for part in parts.values()) == count
    assert list(summary.by_domain) == sorted(summary.by_domain)


@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.25, 0.5, 1.0, NAN])] * 3), min_size=1, max_size=12)
)
def test_against_a_slow_second_opinion(rows: list[tuple[float, float, float]]) -> None:
    dataset = build_dataset([list(row) for row in rows])
    summary = summarise(dataset).whole
    measured = [[v for v in row if v == v] for row in rows]
    counts: Counter[str] = Counter()
    for row in measured:
        right = sum(v >= 0.5 for v in row)
        if row:
            counts["all" if right == len(row) else "none" if right == 0 else "some"] += 1
    assert [summary.regimes[r] for r in summary.regimes] == [
        counts["all"],
        counts["none"],
        counts["some"],
    ]
    often = [sum(value == value for value in column) for column in zip(*rows, strict=True)]
    columns = [k for k, count in enumerate(often) if count >= 2]  # of 12 rows, so a tenth as well
    whole_rows = [row for row in rows if all(row[k] == row[k] for k in columns)]
    compared = whole_rows if len(columns) > 1 and len(whole_rows) > 1 else []
    assert summary.compared == len(compared)
    assert (summary.best_single_accuracy is None) == (len(compared) < 2)
    if len(compared) > 1:
        best = [max(value for value in row if value == value) for row in compared]
        assert summary.oracle_accuracy == pytest.approx(np.mean(best))
        singles = [np.mean([row[k] for row in compared]) for k in columns]
        assert summary.best_single_accuracy == pytest.approx(max(singles))


@given(st.permutations(range(20)), st.permutations(range(3)))
def test_orders_of_queries_and_targets_change_nothing(
    queries: list[int], targets: list[int]
) -> None:
    dataset = make_routing_dataset(queries=20, missing=0.2)
    moved = dataset.select(
        [dataset.query_ids[i] for i in queries], targets=[dataset.pool.names[i] for i in targets]
    )
    before, after = summarise(dataset).whole, summarise(moved).whole
    assert before.regimes == after.regimes
    assert before.oracle_accuracy == pytest.approx(after.oracle_accuracy)
    by_name = {t.name: t for t in after.targets}
    assert [by_name[t.name].accuracy for t in before.targets] == pytest.approx(
        [t.accuracy for t in before.targets]
    )
    assert summarise(dataset).fingerprint == summarise(moved).fingerprint


def test_to_dict_holds_plain_values() -> None:
    content = summarise(make_routing_dataset(queries=20)).to_dict()
    assert set(content) == {
        *("queries", "distinct_prompts", "targets", "best_single", "best_single_accuracy"),
        *("compared", "oracle_accuracy", "regimes", "unmeasured", "single_label", "by_benchmark"),
        *("by_domain", "fingerprint", "labels_mean"),
    }
    assert set(content["regimes"]) == {"all_correct", "all_incorrect", "disagreement"}
    assert set(content["targets"][0]) == {
        *("name", "measured", "missing", "accuracy", "mean_cost", "costs_known"),
    }
