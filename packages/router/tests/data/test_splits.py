"""Splits and folds."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from prefill_router.data import (
    FRACTIONS,
    WITH_CALIBRATION,
    Part,
    Query,
    RoutingDataset,
    Split,
    load_split,
    read_dataset,
    regimes,
    save_split,
    split,
    stratified_folds,
)
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.targets import Pool, Target
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

SHARES = [FRACTIONS, WITH_CALIBRATION]


def with_prompts(dataset: RoutingDataset, prompts: list[str]) -> RoutingDataset:
    queries = [
        Query(query.id, prompt, query.benchmark, query.domain)
        for query, prompt in zip(dataset.queries, prompts, strict=True)
    ]
    return RoutingDataset.of(queries, dataset.pool, dataset.correct)


def strata(dataset: RoutingDataset) -> dict[str, str]:
    return {
        query.id: f"{query.benchmark} / {query.domain} | {regime}"
        for query, regime in zip(dataset.queries, regimes(dataset.correct), strict=True)
    }


@pytest.mark.parametrize("fractions", SHARES)
def test_every_query_is_in_exactly_one_part(fractions: Mapping[Part, float]) -> None:
    dataset = make_routing_dataset(queries=500, missing=0.3)
    query_split = split(dataset, fractions=fractions)
    assert sorted(i for ids in query_split.parts.values() for i in ids) == sorted(dataset.query_ids)
    assert set(query_split.parts) == set(fractions)
    assert all(list(ids) == sorted(ids) for ids in query_split.parts.values())


@pytest.mark.parametrize("fractions", SHARES)
@pytest.mark.parametrize("seed", range(5))
def test_each_stratum_is_split_within_a_row_and_the_whole_too(
    fractions: Mapping[Part, float], seed: int
) -> None:
    dataset = make_routing_dataset(queries=2000, seed=seed)
    query_split = split(dataset, seed=seed, fractions=fractions)
    stratum_of = strata(dataset)
    sizes = Counter(stratum_of.values())
    large = {name for name in sizes if name not in query_split.merged}
    assert len(large) > 5
    for part, share in fractions.items():
        inside = Counter(stratum_of[i] for i in query_split[part])
        for name in large:
            assert abs(inside[name] - share * sizes[name]) <= 1 + len(fractions) / 2, (part, name)
        assert abs(len(query_split[part]) - share * len(dataset)) <= 1


def test_the_real_split_is_stratified(mmlu_pro: Path) -> None:
    dataset = read_dataset(mmlu_pro)
    query_split = split(dataset, seed=0)
    stratum_of = strata(dataset)
    sizes = Counter(stratum_of.values())
    test = Counter(stratum_of[i] for i in query_split["test"])
    assert abs(len(query_split["test"]) - 0.15 * 9692) <= 2
    for name, size in sizes.items():
        if name not in query_split.merged:
            # queries that share a prompt move together and may differ in domain
            assert abs(test[name] - 0.15 * size) <= 4, name
    part_of = {i: part for part, ids in query_split.parts.items() for i in ids}
    parts_of_prompt: dict[str, set[str]] = {}
    for query_id, key in zip(dataset.query_ids, dataset.prompt_keys, strict=True):
        parts_of_prompt.setdefault(key, set()).add(part_of[query_id])
    assert all(len(parts) == 1 for parts in parts_of_prompt.values())


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(60)), st.permutations(range(3)), st.integers(0, 5))
def test_the_order_of_rows_and_targets_changes_nothing(
    rows: list[int], columns: list[int], seed: int
) -> None:
    dataset = make_routing_dataset(queries=60, missing=0.2)
    dataset = with_prompts(dataset, [f"prompt {i // 2}" for i in range(60)])
    moved = dataset.select(
        [dataset.query_ids[i] for i in rows], targets=[dataset.pool.names[i] for i in columns]
    )
    assert split(moved, seed=seed) == split(dataset, seed=seed)
    folds = dict(zip(dataset.query_ids, stratified_folds(dataset, seed=seed), strict=True))
    again = dict(zip(moved.query_ids, stratified_folds(moved, seed=seed), strict=True))
    assert folds == again


def test_the_parts_and_folds_of_a_seed_stay_what_they_were() -> None:
    answers = make_routing_dataset(queries=300, missing=0.3)
    queries = [
        Query(query.id, f"prompt {7 * i % 211}", f"benchmark {i % 3}", f"domain {i % 40}")
        for i, query in enumerate(answers.queries)
    ]
    dataset = RoutingDataset.of(queries, answers.pool, answers.correct)
    splits = [split(dataset, seed=4, fractions=fractions).to_dict() for fractions in SHARES]
    text = json.dumps([*splits, stratified_folds(dataset, count=5, seed=4).tolist()])
    assert hashlib.sha256(text.encode()).hexdigest().startswith("65fec54070ec8aa1")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=5, max_size=40), st.integers(0, 3))
def test_equal_prompts_share_a_part_and_a_fold(prompts: list[int], seed: int) -> None:
    texts = [f"prompt {n}" for n in prompts]
    dataset = with_prompts(make_routing_dataset(queries=len(texts)), texts)
    if len(set(texts)) < 3:
        with pytest.raises(DataError, match="distinct prompts can't fill"):
            split(dataset, seed=seed, fractions=WITH_CALIBRATION)
        return
    query_split = split(dataset, seed=seed, fractions=WITH_CALIBRATION)
    part_of = {i: part for part, ids in query_split.parts.items() for i in ids}
    folds = stratified_folds(dataset, count=3, seed=seed)
    for text in set(texts):
        same = [i for i, other in enumerate(texts) if other == text]
        assert len({part_of[f"q{i}"] for i in same}) == 1
        assert len({folds[i] for i in same}) == 1


@pytest.mark.parametrize("fractions", SHARES)
@pytest.mark.parametrize("queries", [3, 4, 5, 6, 7, 10, 15])
@pytest.mark.parametrize("seed", range(4))
def test_no_part_of_a_tiny_dataset_is_empty(
    fractions: Mapping[Part, float], queries: int, seed: int
) -> None:
    dataset = make_routing_dataset(queries=queries, seed=seed)
    query_split = split(dataset, seed=seed, fractions=fractions)
    assert all(len(ids) > 0 for ids in query_split.parts.values())
    assert len(query_split["train"]) >= max(len(query_split[part]) for part in query_split.parts)


def test_seeds_differ_and_agree_with_themselves() -> None:
    dataset = make_routing_dataset(queries=200)
    splits = [split(dataset, seed=seed) for seed in range(6)]
    assert len({query_split["test"] for query_split in splits}) == 6
    assert split(dataset, seed=3) == splits[3]
    overlap = len(set(splits[0]["test"]) & set(splits[1]["test"])) / len(splits[0]["test"])
    assert overlap < 0.5


def test_small_strata_are_merged_and_told() -> None:
    queries = [Query(f"q{i}", f"p{i}", benchmark="big") for i in range(100)]
    queries += [Query(f"s{i}", f"s{i}", benchmark=f"small{i}") for i in range(14)]
    correct = np.ones((114, 1))
    query_split = split(RoutingDataset.of(queries, Pool((Target(name="a"),)), correct))
    assert query_split.merged == {f"small{i} | all correct": 1 for i in range(14)}
    assert abs(len(query_split["test"]) - 0.15 * 114) <= 1
    assert 0 < sum(i.startswith("s") for i in query_split["test"]) < 5


@pytest.mark.parametrize("count", [2, 5])
def test_folds_are_even_in_every_stratum(count: int) -> None:
    dataset = make_routing_dataset(queries=1000)
    folds = stratified_folds(dataset, count=count, seed=1)
    assert set(folds) == set(range(count))
    assert np.ptp(np.bincount(folds)) <= 1
    stratum_of = np.array(list(strata(dataset).values()))
    for name, size in Counter(stratum_of.tolist()).items():
        if size >= count:
            inside = np.bincount(folds[stratum_of == name], minlength=count)
            assert np.ptp(inside) <= 2, name
    with pytest.raises(DataError, match="4 distinct prompts can't fill 5 folds"):
        stratified_folds(make_routing_dataset(queries=4), count=5)


@pytest.mark.parametrize(
    "fractions",
    [{"train": 0.5, "test": 0.4}, {"train": 1.0, "test": 0.0}, {"train": 1.5, "test": -0.5}, {}],
)
def test_fractions_that_make_no_sense(fractions: dict[Part, float]) -> None:
    with pytest.raises(ConfigError, match="positive and add up to 1"):
        split(make_routing_dataset(queries=20), fractions=fractions)


def test_a_split_is_saved_and_read(tmp_path: Path) -> None:
    query_split = split(make_routing_dataset(queries=40), seed=4)
    save_split(query_split, tmp_path / "split.json")
    assert load_split(tmp_path / "split.json") == query_split
    with pytest.raises(ConfigError, match="has no part 'calibration'"):
        query_split["calibration"]


GOOD = Split({"train": ("a", "b"), "test": ("c",)}, 0, {}).to_dict()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '"text"',
        "{}",
        json.dumps({**GOOD, "parts": {"train": ["a"], "test": ["a"]}}),
        json.dumps({**GOOD, "parts": {"train": ["a", "a"]}}),
        json.dumps({**GOOD, "parts": []}),
        json.dumps({**GOOD, "parts": {"train": 5}}),
        json.dumps({**GOOD, "parts": {"train": "abc"}}),
        json.dumps({**GOOD, "seed": "x"}),
        json.dumps({**GOOD, "seed": None}),
        json.dumps({**GOOD, "merged": 3}),
        json.dumps({**GOOD, "parts": {"trial": ["a"]}}),
    ],
)
def test_what_is_no_split_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"split\.json"):
        load_split(path)


def test_bytes_that_are_no_text_and_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    with pytest.raises(FormatError, match="make one with: prefill-router split"):
        load_split(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not JSON"):
        load_split(path)


@pytest.mark.parametrize("seed", range(3))
def test_the_test_part_is_the_same_with_and_without_calibration(seed: int) -> None:
    dataset = make_routing_dataset(queries=333, seed=seed, missing=0.1)
    without = split(dataset, seed=seed)
    calibrated = split(dataset, seed=seed, fractions=WITH_CALIBRATION)
    assert calibrated["test"] == without["test"]
    assert sorted((*calibrated["train"], *calibrated["calibration"])) == sorted(without["train"])
    assert len(calibrated["calibration"]) == pytest.approx(33, abs=3)
