"""The dataset in memory."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from prefill_router.data import Message, Query, RoutingDataset, Table, prompt_key, prompt_text
from prefill_router.errors import ConfigError, DataError
from prefill_router.targets import Pool, Target
from prefill_router.testing import make_routing_dataset

POOL = Pool((Target(name="a"), Target(name="b", input_price=1, output_price=10)))
QUERIES = (Query("x", "one"), Query("y", "two"))


def table(*rows: tuple[float, float]) -> Table:
    return np.array(rows, dtype=np.float64)


GOOD = table((0, 1), (np.nan, 0.5))


@pytest.mark.parametrize(
    ("correct", "words"),
    [
        (table((0, 1.5), (0, 0)), "holds 1.5; labels are in"),
        (table((0, -1), (0, 0)), "negative or infinite"),
        (table((0, np.inf), (0, 0)), "negative or infinite"),
    ],
)
def test_labels_that_can_not_be(correct: Table, words: str) -> None:
    with pytest.raises(DataError, match=words):
        RoutingDataset.of(QUERIES, POOL, correct)


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "recorded_cost"])
def test_counts_that_can_not_be(name: str) -> None:
    for bad in (table((-1, 0), (0, 0)), table((np.inf, 0), (0, 0)), table((1e10, 0), (0, 0))):
        with pytest.raises(DataError, match=name):
            RoutingDataset.of(QUERIES, POOL, GOOD, **{name: bad})


def test_tables_must_have_a_row_per_query_and_a_column_per_target() -> None:
    for short in (table((0, 1)), table((0, 1), (0, 1))[:, :1]):
        with pytest.raises(DataError, match="2 queries and 2 targets need"):
            RoutingDataset(QUERIES, POOL, short, short, short, short)


def test_ids_must_differ_and_must_not_be_empty() -> None:
    with pytest.raises(DataError, match=r"query ids repeat: \['x'\]"):
        RoutingDataset.of((QUERIES[0], Query("x", "again")), POOL, GOOD)
    with pytest.raises(DataError, match="empty id"):
        Query("", "prompt")


def test_observed_cost_is_the_recorded_one_else_by_list_prices() -> None:
    dataset = RoutingDataset.of(
        QUERIES,
        POOL,
        GOOD,
        input_tokens=table((100, 100), (100, np.nan)),
        output_tokens=table((1, 1), (1, 1)),
        recorded_cost=table((0.5, np.nan), (np.nan, np.nan)),
    )
    expected = table((0.5, 110 / 1e6), (np.nan, np.nan))
    assert np.array_equal(dataset.observed_cost, expected, equal_nan=True)


def test_a_dataset_of_which_all_is_selected_is_not_copied() -> None:
    dataset = make_routing_dataset(queries=10)
    assert dataset.select() is dataset
    assert dataset.select(iter(dataset.query_ids), targets=dataset.pool.names) is dataset
    assert dataset.select(dataset.query_ids[::-1]).query_ids == dataset.query_ids[::-1]


def test_rows_and_select() -> None:
    dataset = make_routing_dataset(queries=10, missing=0.3)
    ids = ["q7", "q0", "q3"]
    part = dataset.select(ids, targets=["target-2", "target-0"])
    assert dataset.rows(ids) == [7, 0, 3]
    assert part.query_ids == tuple(ids)
    assert part.pool.names == ("target-2", "target-0")
    assert np.array_equal(part.correct, dataset.correct[[7, 0, 3]][:, [2, 0]], equal_nan=True)
    assert np.array_equal(
        part.output_tokens, dataset.output_tokens[[7, 0, 3]][:, [2, 0]], equal_nan=True
    )
    with pytest.raises(DataError, match="lacks 2 of 3 queries, the first is 'no'"):
        dataset.rows(["q1", "no", "neither"])
    with pytest.raises(ConfigError, match="unknown targets"):
        dataset.select(targets=["target-9"])
    with pytest.raises(DataError, match="query ids repeat"):
        dataset.select(["q1", "q1"])


def test_a_pool_of_other_names_is_refused() -> None:
    dataset = make_routing_dataset(queries=5)
    priced = dataset.pool.with_prices({"target-0": (9, 9)})
    assert dataset.with_pool(priced).pool["target-0"].input_price == 9
    with pytest.raises(DataError, match="the dataset needs"):
        dataset.with_pool(dataset.pool.select(["target-1", "target-0", "target-2"]))


@pytest.mark.slow
@given(st.permutations(range(8)), st.permutations(range(3)))
def test_the_fingerprint_does_not_know_order(rows: list[int], columns: list[int]) -> None:
    dataset = make_routing_dataset(queries=8, missing=0.2)
    moved = dataset.select(
        [f"q{i}" for i in rows], targets=[dataset.pool.names[i] for i in columns]
    )
    assert moved.fingerprint == dataset.fingerprint


def test_the_fingerprint_knows_labels_ids_prompts_and_targets() -> None:
    dataset = RoutingDataset.of(QUERIES, POOL, GOOD)
    changed = [
        RoutingDataset.of(QUERIES, POOL, table((0, 1), (0, 0.5))),
        RoutingDataset.of((QUERIES[0], Query("z", "two")), POOL, GOOD),
        RoutingDataset.of((QUERIES[0], Query("y", "three")), POOL, GOOD),
        RoutingDataset.of(QUERIES, Pool((Target(name="a"), Target(name="c"))), GOOD),
        dataset.select(["x"]),
        dataset.select(targets=["a"]),
    ]
    assert len({dataset.fingerprint, *(other.fingerprint for other in changed)}) == 7


PROMPTS = st.one_of(
    st.text(),
    st.lists(st.builds(Message, st.text(max_size=3), st.text(max_size=5)), max_size=3).map(tuple),
)


@pytest.mark.slow
@given(PROMPTS, PROMPTS)
def test_prompts_share_a_key_only_when_equal(first: object, second: object) -> None:
    assert (prompt_key(first) == prompt_key(second)) == (first == second)  # type: ignore[arg-type]


def test_a_lone_surrogate_has_a_key() -> None:
    assert len(prompt_key("\ud800")) == 64


def test_the_text_of_a_chat() -> None:
    chat = (Message("system", "Be brief."), Message("user", "Why?"))
    assert prompt_text(chat) == "Be brief.\n\nWhy?"
    assert prompt_text("Why?") == "Why?"


def test_a_chat_without_messages_is_refused() -> None:
    with pytest.raises(DataError, match="chat without messages"):
        Query("q", ())


def test_a_dataset_shows_itself_in_a_line() -> None:
    dataset = RoutingDataset.of(QUERIES, POOL, GOOD)
    labels = int((~np.isnan(GOOD)).sum())
    line = f"<RoutingDataset: {len(QUERIES)} queries, {len(POOL)} targets, {labels} labels>"
    assert repr(dataset) == line


def test_what_was_not_measured_takes_no_memory_and_stays_so_in_a_subset() -> None:
    dataset = RoutingDataset.of(QUERIES, POOL, GOOD)
    assert np.isnan(dataset.recorded_cost).all()
    for part in (dataset, dataset.select(["y"]), dataset.select(["y", "x"], targets=["b"])):
        assert part.recorded_cost.strides == (0, 0)
        assert part.recorded_cost.shape == part.correct.shape
        assert not part.recorded_cost.flags.writeable


def test_a_subset_has_the_prompt_keys_of_its_queries() -> None:
    dataset = RoutingDataset.of(QUERIES, POOL, GOOD)
    before = dataset.select(["y", "x"])
    assert dataset.prompt_keys == tuple(prompt_key(query.prompt) for query in QUERIES)
    for subset in (before, dataset.select(["y", "x"])):
        assert subset.prompt_keys == dataset.prompt_keys[::-1]
