"""Benchmarks from a hub; it is one of our own, on 127.0.0.1."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packages.lab.tests.benchmarks import hub_job as tasks_hub_job
from packages.lab.tests.benchmarks.task_files import (
    problem,
    write_hle,
    write_livecodebench,
    write_mmlu_pro,
)
from packages.router.tests.fakes.hub import GOOD_TOKEN, FakeHub, serve_hub
from packages.router.tests.fakes.hub_worker import SECRET, HubWorker, hub_worker

pytestmark = pytest.mark.slow

MMLU_PRO, HLE = "TIGER-Lab/MMLU-Pro", "cais/hle"
LIVECODEBENCH = "livecodebench/code_generation_lite"
Job = Callable[..., dict[str, Any]]


def files_of(folder: Path) -> dict[str, bytes]:
    contents = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {**contents, "loader.py": b"raise SystemExit", "README.md": b"words"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with serve_hub() as hub:
        hub.repositories[MMLU_PRO] = files_of(write_mmlu_pro(tmp_path / "mmlu_pro"))
        hub.repositories[HLE] = files_of(write_hle(tmp_path / "hle"))
        hub.repositories[LIVECODEBENCH] = files_of(write_livecodebench(tmp_path / "lcb"))
        hub.gated.add(HLE)
        yield hub


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubWorker]:
    with hub_worker(tasks_hub_job.__name__, tmp_path_factory.mktemp("worker")) as worker:
        yield worker


@pytest.fixture
def load(hub: FakeHub, worker: HubWorker, tmp_path: Path) -> Job:
    def run(
        spec: str, revision: str | None = None, *, token: str | None = None, **settings: str
    ) -> dict[str, Any]:
        return worker.do(hub, tmp_path / "hf", (spec, revision), token=token, settings=settings)

    return run


def test_the_newest_commit_and_its_data_files_alone(hub: FakeHub, load: Job) -> None:
    output = load("mmlu_pro")
    assert output["ids"] == [f"mmlu_pro-{n}" for n in range(70, 82)]
    assert output["source"] == f"{MMLU_PRO}@{hub.commit(MMLU_PRO)}"
    assert hub.downloaded() == {"data/test-00000-of-00001.parquet"}
    assert len(load("mmlu_pro,shots=5")["ids"]) == 12
    assert "data/validation-00000-of-00001.parquet" in hub.downloaded()


def test_a_revision_and_what_is_not_there(hub: FakeHub, load: Job) -> None:
    commit = hub.commit(MMLU_PRO)
    assert load("mmlu_pro", commit)["source"] == f"{MMLU_PRO}@{commit}"
    assert load(f"mmlu_pro,revision={commit}")["source"] == f"{MMLU_PRO}@{commit}"
    output = load("mmlu_pro", "v9")
    assert output["error"] == "ConfigError"
    assert "no such revision" in output["message"]
    assert (
        "two revisions are given, 'v9' and 'main'"
        in load("mmlu_pro,revision=v9", "main")["message"]
    )
    del hub.repositories[MMLU_PRO]
    assert "no such repository" in load("mmlu_pro")["message"]


def test_what_was_downloaded_is_there_without_the_hub(load: Job) -> None:
    online = load("mmlu_pro")
    assert load("mmlu_pro", HF_ENDPOINT="http://127.0.0.1:9") == online
    assert load("mmlu_pro", HF_HUB_OFFLINE="1") == online
    output = load("livecodebench", HF_ENDPOINT="http://127.0.0.1:9")
    assert output["error"] == "ConfigError"
    assert "check the connection, HF_ENDPOINT and" in output["message"]
    assert "NAME=FOLDER" in output["message"]


def test_gated_benchmark_says_how_to_get_in(load: Job) -> None:
    for token in (None, SECRET):
        output = load("hle", token=token)
        assert output["error"] == "ConfigError"
        assert (
            "log in at https://huggingface.co/datasets/cais/hle, accept them" in output["message"]
        )
        assert "HF_TOKEN" in output["message"]
    assert load("hle", token=GOOD_TOKEN)["ids"] == ["hle-66e0", "hle-66e2"]


def test_only_the_releases_asked_for_are_fetched(hub: FakeHub, load: Job) -> None:
    assert load("livecodebench,release=v2")["ids"] == ["livecodebench-abc3_a"]
    assert hub.downloaded() == {"test2.jsonl"}
    assert len(load("livecodebench")["ids"]) == 4
    assert hub.downloaded() == {"test.jsonl", "test2.jsonl", "test3.jsonl"}
    output = load("livecodebench,release=release_v4")
    assert output["error"] == "FormatError"
    assert f"@{hub.commit(LIVECODEBENCH)}: holds no file named test4.jsonl" in output["message"]


def test_broken_file_of_the_hub(hub: FakeHub, load: Job) -> None:
    row = {**problem(1), "private_test_cases": "broken"}
    hub.repositories[LIVECODEBENCH] = {"test.jsonl": json.dumps(row).encode()}
    output = load("livecodebench")
    assert output["error"] == "FormatError"
    assert "test.jsonl:1: private_test_cases is neither JSON" in output["message"]
    hub.repositories[MMLU_PRO]["data/test-00000-of-00001.parquet"] = b"PAR1 nonsense"
    assert "isn't readable Parquet" in load("mmlu_pro")["message"]
