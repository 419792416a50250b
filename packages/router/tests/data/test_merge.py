"""Several datasets as one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.commands import check_refused, run_ok
from prefill_router.data import Query, RoutingDataset, merge, read_dataset, write_dataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.targets import Pool, Provider, Target
from prefill_router.testing import make_routing_dataset

NAN = np.nan


def build_dataset(
    ids: str, targets: str, rows: list[list[float]], *, cost: float = NAN, **changes: object
) -> RoutingDataset:
    """A query per letter, a target per letter, and labels."""
    table = np.array(rows, dtype=np.float64)
    dataset = RoutingDataset.of(
        [Query(i, f"{i}?", "bench") for i in ids],
        Pool(tuple(Target(name=name) for name in targets)),
        table,
        recorded_cost=np.where(np.isnan(table), NAN, cost),
    )
    return replace(dataset, **changes)  # type: ignore[arg-type]


def test_queries_join_by_id_and_targets_by_name() -> None:
    first_part = build_dataset("ab", "xy", [[1, 0], [0, NAN]], cost=0.1)
    second_part = build_dataset("cb", "yz", [[1, 0.5], [1, 0]], cost=0.2)
    union = merge({"one": first_part, "two": second_part})
    assert union.query_ids == ("a", "b", "c")
    assert union.pool.names == ("x", "y", "z")
    expected = [[1, 0, NAN], [0, 1, 0], [NAN, 1, 0.5]]
    assert np.array_equal(union.correct, expected, equal_nan=True)
    costs = [[0.1, 0.1, NAN], [0.1, 0.2, 0.2], [NAN, 0.2, 0.2]]
    assert np.array_equal(union.recorded_cost, costs, equal_nan=True)


def test_parts_of_a_dataset_merge_into_the_whole() -> None:
    dataset = make_routing_dataset(queries=40, targets=4, missing=0.3)
    names, ids = dataset.pool.names, dataset.query_ids
    parts = {
        "a": dataset.select(ids[:25], targets=names[2:]),
        "b": dataset.select(ids[20:], targets=names[:3]),
        "c": dataset.select(ids[::-1]),
    }
    union = merge(parts)
    assert union.fingerprint == dataset.fingerprint
    again = union.select(ids, targets=names)
    for name in ("input_tokens", "output_tokens", "recorded_cost"):
        assert np.array_equal(getattr(again, name), getattr(dataset, name), equal_nan=True)
    assert again.pool == dataset.pool


def test_labels_that_contradict_each_other_are_refused_unless_one_is_preferred() -> None:
    first_part = build_dataset("ab", "x", [[1], [0]], cost=0.1)
    second_part = build_dataset("ba", "x", [[0], [0]], cost=0.2)
    with pytest.raises(
        DataError,
        match=r"1 labels in two .* 'a' and target 'x': 0, where it was 1; .*--prefer last",
    ):
        merge({"one": first_part, "two": second_part})
    first = merge({"one": first_part, "two": second_part}, prefer="first")
    last = merge({"one": first_part, "two": second_part}, prefer="last")
    assert first.correct.ravel().tolist() == [1, 0]
    assert first.recorded_cost.ravel().tolist() == [0.1, 0.1]
    assert last.correct.ravel().tolist() == [0, 0]
    assert last.recorded_cost.ravel().tolist() == [0.2, 0.2]


def test_runs_of_the_same_questions_count_as_their_mean(tmp_path: Path) -> None:
    first_part = build_dataset("ab", "xy", [[1, NAN], [0, 1]], cost=0.1)
    second_part = build_dataset("ba", "yx", [[NAN, 1], [1, 0]], cost=0.3)
    third_part = build_dataset("c", "x", [[1]])
    pair = {"one": first_part, "two": second_part}
    with pytest.raises(DataError, match="--repeats mean averages them"):
        merge(pair)
    union = merge({**pair, "three": third_part}, repeats="mean")
    expected = [[0.5, 1], [0.5, 1], [1, NAN]]
    assert np.array_equal(union.correct, expected, equal_nan=True)
    assert union.runs is not None
    assert np.array_equal(union.runs, [[2, 1], [2, 1], [1, NAN]], equal_nan=True)
    assert union.recorded_cost[:2] == pytest.approx(np.array([[0.2, 0.3], [0.2, 0.1]]))
    more = merge({"both": union, "again": build_dataset("a", "x", [[1]], cost=0.5)}, repeats="mean")
    assert more.runs is not None
    assert (more.correct[0, 0], more.runs[0, 0]) == (pytest.approx(2 / 3), 3)
    assert more.recorded_cost[0, 0] == pytest.approx(0.3)
    for name, dataset in pair.items():
        write_dataset(dataset, tmp_path / name)
    folders = [str(tmp_path / name) for name in pair]
    check_refused("--repeats mean", "merge", *folders, "--out", str(tmp_path / "out"))
    check_refused(
        "must be one of mean",
        "merge",
        *folders,
        "--out",
        str(tmp_path / "out"),
        "--repeats",
        "1",
        code=2,
    )
    run_ok("merge", *folders, "--out", str(tmp_path / "out"), "--repeats", "mean")
    runs = read_dataset(tmp_path / "out").runs
    assert runs is not None
    assert runs.tolist() == [[2, 1], [2, 1]]


def test_counts_and_cost_of_an_answer_come_from_one_dataset() -> None:
    cell = np.array([[3.0]])
    first_part = build_dataset("a", "x", [[NAN]], output_tokens=cell)
    second_part = build_dataset("a", "x", [[1]], output_tokens=2 * cell, input_tokens=cell)
    union = merge({"one": first_part, "two": second_part})
    assert (union.correct[0, 0], union.output_tokens[0, 0]) == (1, 3)
    assert np.isnan(union.input_tokens[0, 0])


def test_a_query_that_asks_something_else_is_refused() -> None:
    first_part = build_dataset("a", "x", [[1]])
    second_part = build_dataset("a", "x", [[1]], queries=(Query("a", "other?"),))
    with pytest.raises(DataError, match=r"'a' has another prompt in two .* --query-column"):
        merge({"one": first_part, "two": second_part}, prefer="first")


def test_what_one_dataset_knows_of_a_query_or_target_is_kept() -> None:
    free = Target(name="x", input_price=0, output_price=0, provider="p")
    server = Provider(name="p", base_url="http://127.0.0.1:1/v1")
    pool = Pool((free,), "2026-01-02", (server,))
    bare = build_dataset("a", "x", [[1]], queries=(Query("a", "a?", domain="d"),))
    full = build_dataset("a", "x", [[1]], pool=pool)
    for pair in ({"one": bare, "two": full}, {"one": full, "two": bare}):
        union = merge(pair)
        assert union.pool.targets == (free,)
        assert union.pool.providers == (server,)
        assert union.queries == (Query("a", "a?", "bench", "d"),)
    assert merge({"one": full, "two": full}).pool == pool


def test_prices_that_contradict_each_other_are_refused_unless_one_is_preferred() -> None:
    pools = [Pool((Target(name="x", input_price=p, output_price=1),)) for p in (0, 2)]
    first_part, second_part = (build_dataset("a", "x", [[1]], pool=pool) for pool in pools)
    with pytest.raises(DataError, match=r"'x' has another input_price in two .*--prefer first"):
        merge({"one": first_part, "two": second_part})
    assert merge({"one": first_part, "two": second_part}, prefer="last").pool["x"].input_price == 2
    assert merge({"one": first_part, "two": second_part}, prefer="first").pool["x"].input_price == 0


def test_one_dataset_is_none_to_merge() -> None:
    with pytest.raises(ConfigError, match="name two or more"):
        merge({"one": build_dataset("a", "x", [[1]])})


def test_the_command(tmp_path: Path) -> None:
    dataset = make_routing_dataset(queries=20)
    for name, targets in (("a", dataset.pool.names[:2]), ("b", dataset.pool.names[1:])):
        write_dataset(dataset.select(targets=targets), tmp_path / name)
    pair = ("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both")
    assert "20 queries, 3 targets, 60 labels, 0 missing" in run_ok(*pair)
    assert read_dataset(tmp_path / "both").fingerprint == dataset.fingerprint
    assert json.loads(run_ok(*pair, "--json"))["dataset"]["queries"] == 20
    check_refused("name two or more", "merge", tmp_path / "a", "--out", tmp_path / "c")
    other = ("merge", tmp_path / "b", tmp_path / "a", "--out", tmp_path / "both")
    check_refused("pass --overwrite", *other)
    run_ok(*other, "--overwrite")
