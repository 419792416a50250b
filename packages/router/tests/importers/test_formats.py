"""What is particular to each format."""

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from prefill_router.data import read_dataset
from prefill_router.errors import FormatError
from prefill_router.importers import import_dataset, read_prices, sources

from .samples import (
    mmlu_pro_item,
    nvidia_rows,
    result,
    result_path,
    routellm_rows,
    routerarena_item,
    tar_of,
    write_mmlu_pro,
    write_tree,
)
from .truth import PROMPTS, write_csv

pytestmark = pytest.mark.slow


def test_mmlu_pro_as_published(mmlu_pro: Path) -> None:
    """The two original archives give the labels and, but for two corrected questions, the texts."""
    dataset, report = import_dataset("mmlu_pro", [mmlu_pro / "raw"], strict=True)
    original = read_dataset(mmlu_pro).select(dataset.query_ids, targets=dataset.pool.names)
    assert set(dataset.pool.names) == {"Meta-Llama-3_1-8B-Instruct", "jamba-1.5-large"}
    assert len(dataset) == 9692
    assert np.array_equal(dataset.correct, original.correct)
    differing = {
        query.id
        for query, other in zip(dataset.queries, original.queries, strict=True)
        if query != other
    }
    assert differing == {"mmlu_pro-321", "mmlu_pro-3983"}
    assert (report.rows_read, report.malformed) == (2 * 9692, 0)
    assert "5 queries have different texts" in report.notes[0]


def test_stray_texts_and_odd_letters_of_mmlu_pro(tmp_path: Path) -> None:
    path = tmp_path / "model_outputs_x_5shots.json"
    items = [
        mmlu_pro_item(0, 0),
        "stray",
        {**mmlu_pro_item(1, 0), "pred": "b"},
        {**mmlu_pro_item(2, 0), "pred": ""},
        {**mmlu_pro_item(3, 0), "pred": 1},
        {**mmlu_pro_item(4, 0), "options": []},
        {k: v for k, v in mmlu_pro_item(1, 0).items() if k != "pred"},
        {**mmlu_pro_item(2, 0), "pred": "J"},
        {**mmlu_pro_item(3, 0), "pred": None},
    ]
    path.write_text(json.dumps(items))
    dataset, report = import_dataset("mmlu_pro", [path], skip_malformed=True)
    assert [problem.line for problem in report.problems] == [2, 3, 4, 5, 6, 7]
    assert report.problems[0].reason == "is a str; an answer must be an object"
    assert dataset.correct[:, 0].tolist() == [1, 0, 0]
    assert dataset.pool.names == ("x",)


def test_mmlu_pro_needs_the_target_in_the_name(tmp_path: Path) -> None:
    (tmp_path / "outputs.json").write_text(json.dumps([mmlu_pro_item(0, 0)]))
    with pytest.raises(FormatError, match="its name doesn't contain the target"):
        import_dataset("mmlu_pro", [tmp_path])


@pytest.mark.parametrize("as_tar", [False, True])
def test_each_file_that_counts_is_counted_once(as_tar: bool, tmp_path: Path) -> None:
    for target, stamp in [("a", 1), ("a", 2), ("b", 1)]:
        folder = tmp_path / "bench" / "gsm" / "test" / target
        folder.mkdir(parents=True, exist_ok=True)
        records = [{"index": 0, "origin_query": "why?", "score": stamp - 1}]
        path = folder / f"gsm-test-{target}-2025010{stamp}_000000.json"
        path.write_text(json.dumps({"records": records}))
    (folder / "notes.json").write_text("{}")
    source = tmp_path / "bench"
    if as_tar:
        source = tmp_path / "bench.tar"
        with tarfile.open(source, "w") as tar:
            tar.add(tmp_path / "bench", "bench")
    _, report = import_dataset("llmrouterbench", [source])
    assert report.files_read == 2
    assert report.files_skipped == {"older than another run": 1, "without the name of a result": 1}


def test_an_encrypted_or_broken_zip_is_named(tmp_path: Path) -> None:
    path = write_mmlu_pro(tmp_path, zipped=True)[0] / "model_outputs_alpha_5shots.zip"
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1  # the flag of an encrypted member
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="encrypted"):
        import_dataset("mmlu_pro", [path])


def _bomb(path: Path, size: int) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model_outputs_x_5shots.json", " " * size)


def test_what_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_DOCUMENT", 2**20)
    bomb = tmp_path / "model_outputs_x_5shots.zip"
    _bomb(bomb, 2**21)
    assert bomb.stat().st_size < 2**14
    with pytest.raises(FormatError, match="unpacks to more than 1,048,576 bytes"):
        import_dataset("mmlu_pro", [bomb])
    tar_of(tmp_path / "t.tar.gz", {f"results/{result_path('a')}": " " * 2**21})
    with pytest.raises(FormatError, match="unpacks to more than 1,048,576 bytes"):
        import_dataset("llmrouterbench", [tmp_path / "t.tar.gz"])
    monkeypatch.setattr(sources, "MAX_ARCHIVE", 2**20)
    tar_of(tmp_path / "u.tar.gz", {f"padding/{n}": " " * 2**19 for n in range(3)})
    with pytest.raises(FormatError, match="unpacks to more than 1,048,576 bytes"):
        import_dataset("llmrouterbench", [tmp_path / "u.tar.gz"])


@pytest.mark.parametrize("reverse", [False, True])
def test_the_newest_run_counts_and_demos_do_not(reverse: bool, tmp_path: Path) -> None:
    old, new, demo = result(0), result(1), result(0, demo=True)
    members = {
        f"results/{result_path('a', '20260101_000000')}": json.dumps(old),
        f"results/{result_path('a', '20260101_000001')}": json.dumps(new),
        f"results/{result_path('a', '20270101_000000')}": json.dumps(demo),
        "results/bench/made-up/test/a/summary.json": "{}",
        "results/README.md": "hello",
    }
    ordered = dict(sorted(members.items(), reverse=reverse))
    tar_of(tmp_path / "t.tar.gz", ordered)
    dataset, report = import_dataset("llmrouterbench", [tmp_path / "t.tar.gz"], strict=True)
    labels = {
        query.prompt: label
        for query, label in zip(dataset.queries, dataset.correct[:, 0], strict=True)
    }
    assert labels == {PROMPTS[q]: label for q, label in ((0, 0), (1, 1), (2, 1), (4, 1))}
    assert report.files_skipped == {
        "older than another run": 1,
        "demo": 1,
        "without the name of a result": 1,
    }
    assert {query.id for query in dataset.queries} == {f"made-up/test/{q}" for q in (0, 1, 2, 4)}


def test_null_scores_are_missing_labels_and_keep_their_costs(tmp_path: Path) -> None:
    run = result(0)
    run["records"][0]["score"] = None  # type: ignore[index]
    run["records"][1]["score"] = 0.5  # type: ignore[index]
    tar_of(tmp_path / "t.tar", {result_path("a"): json.dumps(run)}, mode="w")
    dataset, report = import_dataset("llmrouterbench", [tmp_path / "t.tar"])
    assert np.isnan(dataset.correct[0, 0])
    assert dataset.correct[1, 0] == 0.5
    assert dataset.recorded_cost[0, 0] == 0.01
    assert dataset.input_tokens[0, 0] == 7
    assert report.malformed == 0


def test_records_that_join_on_an_index_must_ask_the_same(tmp_path: Path) -> None:
    (folder,) = write_tree(tmp_path)
    path = folder / result_path("beta")
    run = json.loads(path.read_text())
    run["records"][0]["origin_query"] = "Another question"
    del run["records"][1]["index"]
    path.write_text(json.dumps(run))
    dataset, report = import_dataset("llmrouterbench", [folder], skip_malformed=True)
    assert [problem.line for problem in report.problems] == [1, 2]
    assert "has another text than at" in report.problems[0].reason
    assert report.problems[1].reason == "index is missing; it must be text"
    assert np.isnan(dataset.correct[:2, 1]).all()


def test_members_that_point_elsewhere_are_never_followed(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    secret = tmp_path / result_path("secret").rsplit("/", 1)[-1]
    secret.write_text(json.dumps(result(0)))
    with tarfile.open(inside / "t.tar", "w") as tar:
        for name in (f"../../{result_path('up')}", f"/{result_path('root')}"):
            data = json.dumps(result(1)).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            link = tarfile.TarInfo(result_path("secret"))
            link.type, link.linkname = kind, str(secret)
            tar.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    dataset, _ = import_dataset("llmrouterbench", [inside / "t.tar"])
    assert set(dataset.pool.names) == {"up", "root"}
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (folder,) = write_tree(tmp_path)
    hidden = folder / result_path("beta")
    hidden.unlink()
    hidden.symlink_to(hidden)  # a link to itself can't be opened
    dataset, _ = import_dataset("llmrouterbench", [folder])
    assert dataset.pool.names == ("alpha",)
    if os.geteuid() != 0:
        (folder / result_path("alpha")).chmod(0)
        with pytest.raises(FormatError, match="Permission denied"):
            import_dataset("llmrouterbench", [folder])


def test_files_of_the_blueprint_number_their_questions_apart(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", nvidia_rows())
    other = [{**row, "question": f"Other {row['question']}"} for row in nvidia_rows()]
    test = write_csv(tmp_path / "test.csv", other)
    dataset, report = import_dataset("nvidia", [train, test], strict=True)
    assert len(dataset) == 2 * len(PROMPTS)
    assert report.rows_kept == 18
    assert {query.id for query in dataset.queries} >= {"train-0", "test-0"}


def test_a_blueprint_without_numbers_knows_questions_by_their_text(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "embedding_id"} for row in nvidia_rows()]
    dataset, _ = import_dataset("nvidia", [write_csv(tmp_path / "t.csv", rows)], strict=True)
    assert len(dataset) == len(PROMPTS)
    assert not np.isnan(dataset.correct[0]).any()


def test_routellm_names_benchmarks_by_file_and_ignores_answers(tmp_path: Path) -> None:
    paths = [
        write_csv(tmp_path / name, routellm_rows())
        for name in ("gsm8k_responses.csv", "mmlu_anatomy.csv")
    ]
    dataset, _ = import_dataset("routellm", paths, strict=True)
    assert dataset.pool.names == ("org/alpha", "beta")
    assert {query.benchmark for query in dataset.queries} == {"gsm8k", "mmlu_anatomy"}
    assert len(dataset) == 2 * len(PROMPTS)


def test_routellm_ids_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    forward = import_dataset("routellm", [write_csv(tmp_path / "t.csv", routellm_rows())])
    backward = import_dataset("routellm", [write_csv(tmp_path / "t.csv", routellm_rows()[::-1])])
    assert forward.dataset.fingerprint == backward.dataset.fingerprint


def test_a_column_that_is_no_target_makes_rows_malformed(tmp_path: Path) -> None:
    rows = [{**row, "subject": "algebra"} for row in routellm_rows()]
    with pytest.raises(FormatError, match="subject is 'algebra'; a label is a number"):
        import_dataset("routellm", [write_csv(tmp_path / "t.csv", rows)])


def test_unscored_and_failed_entries_of_routerarena(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    failed = {"success": False, "token_usage": None, "error": "timeout"}
    items = [
        routerarena_item(0, 0),
        {**routerarena_item(1, 1), "accuracy": None, "generated_result": None, "cost": None},
        {**routerarena_item(2, 0), "generated_result": failed, "cost": 0, "accuracy": 0},
        {**routerarena_item(3, 0), "generated_result": []},
        {**routerarena_item(3, 0), "generated_result": "?"},
        {**routerarena_item(4, 0), "global index": "unnumbered"},
    ]
    path.write_text(json.dumps(items))
    dataset, report = import_dataset("routerarena", [path], skip_malformed=True)
    assert [problem.line for problem in report.problems] == [5]
    assert [query.benchmark for query in dataset.queries] == ["made-up"] * 4 + [""]
    assert np.isnan(dataset.correct[1]).all()
    assert dataset.correct[2, 0] == 0
    assert np.isnan(dataset.recorded_cost[2, 0])
    assert "1 calls failed; their labels are as scored, their costs unknown" in report.notes


def test_prices_are_matched_by_name(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", nvidia_rows())
    prices = tmp_path / "pool.yaml"
    prices.write_text(
        "prices_date: 2026-03-19\ntargets:\n"
        "- {name: beta, input_price: 1, output_price: 2, base_url: 'http://127.0.0.1/v1'}\n"
        "- {name: gamma, input_price: 3, output_price: 4}\n"
    )
    dataset, report = import_dataset("nvidia", [path], prices=prices)
    assert dataset.pool.names == ("org/alpha", "beta")
    assert dataset.pool["beta"].output_price == 2
    assert dataset.pool["beta"].base_url == "http://127.0.0.1/v1"
    assert not dataset.pool["org/alpha"].has_price
    assert dataset.pool.prices_date == "2026-03-19"
    assert report.notes == (
        "in the prices but not in the data, left out: gamma",
        "without a price: org/alpha",
    )


def test_prices_of_routerarena(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    names = ("input_token_price_per_million", "output_token_price_per_million")
    path.write_text(json.dumps({"a": dict(zip(names, (0.1, 0.4), strict=True))}))
    assert read_prices(path)["a"].output_price == 0.4
    for content in ({"a": 1}, {"a": {names[0]: 1}}, {"a": dict.fromkeys(names, -1)}, [], {}):
        path.write_text(json.dumps(content))
        with pytest.raises(FormatError, match=r"cost.json"):
            read_prices(path)


def test_parquet_of_routerbench_may_hold_real_lists(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "sample_id": ["s", "t"],
            "prompt": [["p"], ["q", "r"]],
            "eval_name": ["e", "e"],
            "a": [1.0, 0.0],
            "a|model_response": ["x", "y"],
        }
    )
    frame.write_parquet(tmp_path / "t.parquet")
    dataset, report = import_dataset("routerbench", [tmp_path / "t.parquet"], skip_malformed=True)
    assert [query.prompt for query in dataset.queries] == ["p"]
    assert report.problems[0].reason == "prompt is a list of 2 items; it must hold one text"
