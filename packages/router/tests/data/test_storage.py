"""The dataset on disk."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from prefill_router.data import (
    Message,
    Query,
    RoutingDataset,
    check_replaceable,
    read_dataset,
    storage,
    write_dataset,
)
from prefill_router.errors import DataError, FormatError
from prefill_router.targets import Pool, Target
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PROMPTS = WORDS | st.lists(st.builds(Message, WORDS, WORDS), min_size=1, max_size=3).map(tuple)
CELLS = st.none() | st.floats(0, 1)


def are_equal(first: RoutingDataset, second: RoutingDataset) -> bool:
    tables = ("correct", "input_tokens", "output_tokens", "recorded_cost")
    return (first.queries, first.pool) == (second.queries, second.pool) and all(
        np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True)
        for name in tables
    )


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(PROMPTS, min_size=1, max_size=4),
    cells=st.lists(st.lists(CELLS, min_size=8, max_size=8), min_size=4, max_size=4),
    words=st.tuples(WORDS, WORDS),
)
def test_what_is_written_is_read(
    prompts: list[str | tuple[Message, ...]],
    cells: list[list[float | None]],
    words: tuple[str, str],
) -> None:
    queries = [
        Query(f"{i}\n{words[0]}", prompt, words[0], words[1]) for i, prompt in enumerate(prompts)
    ]
    tables = np.array(cells, dtype=np.float64).reshape(4, 4, 2)[:, : len(queries)]
    dataset = RoutingDataset.of(
        queries,
        Pool((Target(name="b"), Target(name="a/ü", input_price=1, output_price=2)), "2026-01-01"),
        tables[0],
        input_tokens=tables[1],
        output_tokens=tables[2],
        recorded_cost=tables[3],
    )
    with TemporaryDirectory() as folder:
        write_dataset(dataset, Path(folder) / "d")
        assert are_equal(read_dataset(Path(folder) / "d"), dataset)


def test_the_real_folder_is_read(mmlu_pro: Path) -> None:
    dataset = read_dataset(mmlu_pro)
    assert (len(dataset), len(dataset.pool)) == (9692, 14)
    assert int((~np.isnan(dataset.correct)).sum()) == 134_277
    assert {query.domain for query in dataset.queries} >= {"law", "math"}
    assert all(target.has_price for target in dataset.pool)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset as other tools write it, without checksums."""
    write_dataset(make_routing_dataset(queries=6, missing=0.2), tmp_path / "d")
    (tmp_path / "d" / "SHA256SUMS").unlink()
    return tmp_path / "d"


def test_rows_in_any_order_give_the_same_tables(folder: Path) -> None:
    before = read_dataset(folder)
    path = folder / "outcomes.parquet"
    pl.read_parquet(path).reverse().write_parquet(path)
    assert are_equal(read_dataset(folder), before)


def test_prices_csv_and_no_pool_at_all(folder: Path) -> None:
    names = [f"target-{k}" for k in range(3)]
    (folder / "pool.yaml").unlink()
    assert read_dataset(folder).pool.names == tuple(names)
    assert not any(target.has_price for target in read_dataset(folder).pool)
    header = "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"
    (folder / "prices.csv").write_text(header + "".join(f"{n},1,2\n" for n in reversed(names)))
    assert read_dataset(folder).pool.names == tuple(reversed(names))


def change(folder: Path, name: str, frame: pl.DataFrame) -> None:
    frame.write_parquet(folder / name)


def check_refused(folder: Path, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_dataset(folder)


def test_outcomes_that_can_not_be_used(folder: Path) -> None:
    good = pl.read_parquet(folder / "outcomes.parquet")
    cases = {
        r"parquet:1: unknown values in query_id: 1, the first is 'no'": good.with_columns(
            pl.when(pl.int_range(pl.len()) == 0)
            .then(pl.lit("no"))
            .otherwise("query_id")
            .alias("query_id")
        ),
        r"unknown values in target: 1,": good.with_columns(pl.lit("no").alias("target")),
        r"has more than one outcome for target": pl.concat([good, good.head(1)]),
        r"lacks the columns \['correct'\]": good.drop("correct"),
        r"correct has the type String; it needs numbers": good.with_columns(
            pl.lit("yes").alias("correct")
        ),
        r"query_id is null": good.with_columns(pl.lit(None).cast(pl.String).alias("query_id")),
    }
    for words, frame in cases.items():
        change(folder, "outcomes.parquet", frame)
        check_refused(folder, words)
    change(folder, "outcomes.parquet", good.with_columns(pl.lit(2.0).alias("correct")))
    with pytest.raises(DataError, match="labels are in"):
        read_dataset(folder)


def test_absurd_types_are_refused_by_name(folder: Path) -> None:
    good = pl.read_parquet(folder / "outcomes.parquet")
    for column in ("query_id", "target", "correct", "input_tokens"):
        for absurd in ([1, 2], {"a": 1}, b"\xff"):
            frame = good.with_columns(pl.lit(pl.Series([absurd])).first().alias(column))
            change(folder, "outcomes.parquet", frame)
            check_refused(folder, column)


@pytest.mark.parametrize("column", ["input_tokens", "output_tokens", "cost"])
def test_counts_and_costs_are_no_booleans(folder: Path, column: str) -> None:
    good = pl.read_parquet(folder / "outcomes.parquet")
    change(folder, "outcomes.parquet", good.with_columns(pl.lit(True).alias(column)))
    check_refused(folder, f"{column} has the type Boolean; it needs numbers")


def test_queries_that_can_not_be_used(folder: Path) -> None:
    good = pl.read_parquet(folder / "queries.parquet")
    cases = {
        "holds no queries": good.head(0),
        "lacks a column prompt or messages": good.drop("prompt", "messages"),
        r"parquet:1: has neither a prompt text nor messages": good.with_columns(
            pl.lit(None).cast(pl.String).alias("prompt")
        ),
        "messages must be a list of": good.with_columns(
            pl.lit(pl.Series([["not a message"]])).first().alias("messages")
        ),
        "empty id": good.with_columns(pl.lit("").alias("query_id")),
    }
    for words, frame in cases.items():
        change(folder, "queries.parquet", frame)
        check_refused(folder, words)
    for column in ("query_id", "benchmark", "domain"):
        change(
            folder,
            "queries.parquet",
            good.with_columns(pl.lit(pl.Series([[1]])).first().alias(column)),
        )
        check_refused(folder, column)
    change(folder, "queries.parquet", pl.concat([good, good]))
    with pytest.raises(DataError, match="query ids repeat"):
        read_dataset(folder)


@pytest.mark.parametrize("name", ["queries.parquet", "outcomes.parquet"])
def test_cut_files_are_refused_by_name(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for length in (0, 1, 4, len(data) // 2, len(data) - 10, len(data) - 4):
        (folder / name).write_bytes(data[:length])
        check_refused(folder, name)


def test_a_pool_file_without_targets_is_refused_by_name(folder: Path) -> None:
    for text in (
        "",
        "prices_date: 2026",
        "targets: [",
        "targets: []",
        "\0",
        "targets: [{name: 1}]",
    ):
        (folder / "pool.yaml").write_text(text)
        check_refused(folder, r"pool\.yaml")


def test_missing_files_are_told(tmp_path: Path, folder: Path) -> None:
    check_refused(tmp_path / "nowhere", "make one with: prefill-router import")
    (folder / "outcomes.parquet").unlink()
    check_refused(folder, "no such file")


def test_something_else_is_not_overwritten(tmp_path: Path) -> None:
    dataset = make_routing_dataset(queries=3)
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(DataError, match="exists and isn't a dataset"):
            write_dataset(dataset, path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    write_dataset(dataset, tmp_path / "empty")
    write_dataset(make_routing_dataset(queries=4), tmp_path / "empty")
    assert len(read_dataset(tmp_path / "empty")) == 4


@pytest.mark.parametrize("moment", ["before it is looked for", "after it was looked for"])
def test_a_dataset_that_another_process_writes_meanwhile_is_one(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(make_routing_dataset(queries=3), tmp_path / "other")
    is_dataset = storage.is_dataset

    def look_meanwhile(folder: Path) -> bool:
        was = is_dataset(folder)
        (tmp_path / "other").rename(folder)
        return is_dataset(folder) if moment.startswith("before") else was

    monkeypatch.setattr(storage, "is_dataset", look_meanwhile)
    check_replaceable(tmp_path / "ours")
    assert len(read_dataset(tmp_path / "ours")) == 3


def test_a_prompt_that_no_encoding_has_is_refused(tmp_path: Path) -> None:
    dataset = make_routing_dataset(queries=3)
    bad = RoutingDataset.of((Query("q", "\ud800"),), dataset.pool, dataset.correct[:1])
    with pytest.raises(DataError, match="query 'q'"):
        write_dataset(bad, tmp_path / "d")
    assert not (tmp_path / "d").exists()
