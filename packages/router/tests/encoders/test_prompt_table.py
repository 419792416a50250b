"""Plans of many prompts: the same chunks in blocks, a cache, and constant memory."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from packages.router.tests.encoders.interrupted_run import SITES, dataset
from prefill_router.activations import ActivationStore, key_digests
from prefill_router.data import (
    QueryFile,
    RoutingDataset,
    folder as folder_module,
    open_queries,
    write_dataset,
)
from prefill_router.encoders import (
    EncodingPlan,
    TokenizedPrompt,
    encode_dataset,
    plan_encoding,
    prompt_table,
    run_encoding,
)
from prefill_router.errors import CorruptError
from prefill_router.testing import FakeEncoder, make_routing_dataset

ENCODER = FakeEncoder(num_layers=2, hidden_size=16, max_tokens=60)
BUDGET = 300


def greedy(prompts: Sequence[TokenizedPrompt], budget: int, most: int) -> list[list[str]]:
    """The keys of each chunk, one prompt after another."""
    distinct = {prompt.key: prompt for prompt in prompts}.values()
    chunks: list[list[TokenizedPrompt]] = []
    for prompt in sorted(distinct, key=lambda p: (-len(p.ids), p.key)):
        used = sum(len(other.ids) for other in chunks[-1]) if chunks else 0
        if not chunks or used + len(prompt.ids) > budget or len(chunks[-1]) >= most:
            chunks.append([])
        chunks[-1].append(prompt)
    return [[prompt.key for prompt in chunk] for chunk in chunks]


@pytest.mark.parametrize(("budget", "most"), [(1, 5), (60, 5), (200, 3), (200, 100), (10**6, 7)])
def test_chunks_are_those_of_a_loop(budget: int, most: int) -> None:
    queries = make_routing_dataset(queries=80).queries
    prompts = ENCODER.tokenize([*queries, *queries[:30]])
    table = prompt_table.PromptTable.of(
        [(prompts[:50], np.arange(50)), (prompts[50:], np.arange(50, 110))]
    )
    chunk_keys = [table.keys[chunk].tolist() for chunk in table.chunks(budget, most)]
    assert chunk_keys == [key_digests(keys).tolist() for keys in greedy(prompts, budget, most)]
    first = {prompt.key: place for place, prompt in reversed(list(enumerate(prompts)))}
    assert sorted(table.places.tolist()) == sorted(first.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset's folder, whose file of queries is read seven at a time."""
    monkeypatch.setattr(folder_module, "BLOCK_ROWS", 7)
    answers = dataset()
    twice = RoutingDataset.of(answers.queries, answers.pool, answers.correct)
    write_dataset(twice, tmp_path / "data")
    return tmp_path / "data"


def make_plan(folder: Path, encoder: FakeEncoder = ENCODER) -> EncodingPlan:
    return plan_encoding(
        *(QueryFile.open(folder), encoder, folder.parent / "s"),
        sites=SITES,
        chunk_tokens=BUDGET,
        cache=folder.parent / "cache",
    )


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_file_read_in_blocks_gives_the_same_store(folder: Path, tmp_path: Path) -> None:
    run_encoding(make_plan(folder), ENCODER)
    encode_dataset(dataset(), ENCODER, tmp_path / "whole", sites=SITES, chunk_tokens=BUDGET)
    assert content(tmp_path / "s") == content(tmp_path / "whole")
    assert len(content(tmp_path / "s")) > 10


def test_no_block_is_larger_than_it_may_be(folder: Path) -> None:
    blocks = list(QueryFile.open(folder).blocks())
    assert [len(block) for block in blocks] == [7] * 5 + [1]
    assert [query for block in blocks for query in block] == list(dataset().queries)


def test_what_was_tokenised_is_not_tokenised_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_plan(folder)
    monkeypatch.setattr(FakeEncoder, "tokenize", None)
    again = make_plan(folder)
    assert [chunk.tolist() for chunk in again.chunks] == [chunk.tolist() for chunk in first.chunks]
    assert again.total_tokens == first.total_tokens
    assert again.queries_of(again.chunks[0]) == first.queries_of(first.chunks[0])


def test_other_queries_and_other_encoders_have_tables_of_their_own(folder: Path) -> None:
    longer = FakeEncoder(num_layers=2, hidden_size=16, max_tokens=200)
    assert make_plan(folder).truncated > make_plan(folder, longer).truncated
    more = make_routing_dataset(queries=50)
    write_dataset(more, folder)
    assert make_plan(folder).prompts == 50


@pytest.mark.parametrize("name", ["keys", "lengths", "prompts.jsonl"])
def test_a_damaged_table_is_made_again_and_a_missing_one_too(folder: Path, name: str) -> None:
    plan = make_plan(folder)
    [path] = (folder.parent / "cache").rglob(name)
    path.unlink()
    again = make_plan(folder)
    np.testing.assert_array_equal(again.table.keys, plan.table.keys)
    if name != "prompts.jsonl":
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        np.testing.assert_array_equal(make_plan(folder).table.lengths, plan.table.lengths)


@pytest.mark.parametrize("change", [(b"why", b"who"), (b'"', b"'")])
def test_changed_texts_are_never_encoded(folder: Path, change: tuple[bytes, bytes]) -> None:
    plan = make_plan(folder)
    [path] = (folder.parent / "cache").rglob("prompts.jsonl")
    path.write_bytes(path.read_bytes().replace(*change))
    with pytest.raises(CorruptError, match="encode again"):
        run_encoding(plan, ENCODER)


def test_only_many_queries_are_left_in_their_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(open_queries(folder), RoutingDataset)
    monkeypatch.setattr(folder_module, "MANY", 36)
    assert open_queries(folder) == QueryFile.open(folder)


def test_nobody_else_can_read_the_prompts_in_the_cache(folder: Path) -> None:
    make_plan(folder)
    assert (folder.parent / "cache" / "plans").stat().st_mode & 0o077 == 0


def test_without_a_cache_a_file_is_read_whole(folder: Path, tmp_path: Path) -> None:
    plan = plan_encoding(QueryFile.open(folder), ENCODER, tmp_path / "s", sites=SITES)
    run_encoding(plan, ENCODER)
    assert len(ActivationStore.open(tmp_path / "s")) == 36


@pytest.mark.slow
def test_memory_hardly_grows_with_the_number_of_prompts(tmp_path: Path) -> None:
    folders = [write_prompts(tmp_path / str(count), count) for count in (10_000, 40_000)]
    command = [sys.executable, "-m", "packages.router.tests.encoders.many_prompts", *folders]
    few, many = map(int, subprocess.run(command, check=True, capture_output=True).stdout.split())
    assert few > 50_000_000
    # Bytes a prompt: its query and its tokens would take more than a thousand in Python.
    assert (many - few) / 30_000 < 500


def write_prompts(folder: Path, prompts: int) -> Path:
    frame = pl.DataFrame({"i": range(prompts)}).select(
        query_id=pl.format("q{}", "i"), prompt=pl.format("Question {}: " + "why " * 50, "i")
    )
    (folder / "data").mkdir(parents=True)
    frame.write_parquet(folder / "data" / "queries.parquet", row_group_size=5000)
    return folder
