"""`export --router-arena`: files that pass a check made from RouterArena's published rules."""

import json
from pathlib import Path
from typing import Any

import pytest

from prefill_router.data import Query, write_dataset
from prefill_router.testing import make_routing_dataset
from packages.router.tests.commands import Job, malformed, refused, succeeded

pytestmark = pytest.mark.slow

NAMES = ("router_data", "router_robustness")


def prompts(seed: int, count: int) -> dict[str, str]:
    made = make_routing_dataset(queries=count, seed=seed)
    return {f"Made-up_{i}": str(query.prompt) for i, query in enumerate(made.queries)}


def write_questions(path: Path, asked: dict[str, Any]) -> Path:
    entries = [{"prompt_formatted": text, "global index": i} for i, text in asked.items()]
    path.write_text(json.dumps(entries))
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder as RouterArena's, with its two lists of questions and somebody else's files."""
    folder = tmp_path / "RouterArena"
    (folder / "dataset").mkdir(parents=True)
    for name, asked in zip(NAMES, (prompts(5, 30), prompts(6, 12)), strict=True):
        write_questions(folder / "dataset" / f"{name}.json", asked)
    (folder / "router_inference" / "config").mkdir(parents=True)
    (folder / "router_inference" / "config" / "theirs.json").write_text("{}")
    return folder


def given(job: Job, checkout: Path, *more: object) -> tuple[object, ...]:
    data, others = (checkout / "dataset" / f"{name}.json" for name in NAMES)
    encoder = ("--encoder-folder", job.tiny)
    asked = ("export", job.router, "--router-arena", checkout, "--data", data, *encoder)
    return (*asked, "--paraphrases", others, *more)


def check(checkout: Path, name: str, *, file: str, questions: str) -> list[dict[str, Any]]:
    """RouterArena's rules on one file of predictions, read from the folder alone."""
    inference = checkout / "router_inference"
    config = json.loads((inference / "config" / f"{name}.json").read_text())
    predictions = json.loads((inference / "predictions" / f"{file}.json").read_text())
    entries = json.loads((checkout / "dataset" / f"{questions}.json").read_text())
    by_index = {entry["global index"]: entry for entry in entries}
    regular = [entry for entry in predictions if not entry.get("for_optimality", False)]
    assert len(regular) == len(entries)
    for entry in regular:
        assert entry["global index"]
        assert entry["prompt"] == by_index[entry["global index"]]["prompt_formatted"]
        assert entry["prediction"] in config["pipeline_params"]["models"]
        assert entry["generated_result"] is entry["cost"] is entry["accuracy"] is None
    return predictions


def test_the_files_pass_their_check_and_have_their_robustness(job: Job, checkout: Path) -> None:
    told = json.loads(succeeded(*given(job, checkout, "--json")))
    full = check(checkout, "router", file="router", questions="router_data")
    other = check(checkout, "router", file="router-robustness", questions="router_robustness")
    chosen = {entry["global index"]: entry["prediction"] for entry in full}
    flips = sum(chosen[entry["global index"]] != entry["prediction"] for entry in other)
    assert told["robustness"] == pytest.approx(1 - flips / 12)
    assert (told["questions"], told["reworded"]) == (30, 12)
    assert set(told["files"]) == {
        str(path.relative_to(checkout))
        for path in (checkout / "router_inference").rglob("router*.json")
    }
    price = {"input_token_price_per_million": 0.1, "output_token_price_per_million": 0.4}
    assert told["model_cost"]["target-0"] == price
    assert any("8400 or 809" in note for note in told["notes"])
    assert (checkout / "router_inference" / "config" / "theirs.json").read_text() == "{}"


def test_targets_are_those_that_route_names(job: Job, checkout: Path) -> None:
    succeeded(*given(job, checkout, "--lam", 0.7))
    full = check(checkout, "router", file="router", questions="router_data")
    for entry in full[:3]:
        asked = ("route", job.router, entry["prompt"], "--lam", 0.7, "--encoder-folder", job.tiny)
        assert json.loads(succeeded(*asked, "--json"))["target"] == entry["prediction"]


def test_without_other_wordings_there_are_typos(job: Job, checkout: Path) -> None:
    succeeded(*given(job, checkout)[:-2])
    place = checkout / "router_inference" / "predictions" / "router-robustness.json"
    entries = {one["global index"]: one["prompt"] for one in json.loads(place.read_text())}
    assert set(entries) == set(prompts(5, 30))
    assert all(entries[i] != text for i, text in prompts(5, 30).items())


def test_a_dataset_will_do_for_questions(job: Job, tmp_path: Path) -> None:
    made = make_routing_dataset(queries=9, seed=8)
    rows = tuple(Query(f"Made-up_{i}", query.prompt) for i, query in enumerate(made.queries))
    write_dataset(type(made).of(rows, made.pool, made.correct), tmp_path / "new")
    asked = ("export", job.router, "--router-arena", tmp_path / "out", "--data", tmp_path / "new")
    told = succeeded(*asked, "--encoder-folder", job.tiny)
    assert "9 questions, 9 reworded" in told


def test_other_files_are_replaced_only_on_request_and_then_all(job: Job, checkout: Path) -> None:
    for _ in range(2):
        succeeded(*given(job, checkout))
    places = sorted((checkout / "router_inference").rglob("router*.json"))
    before = [path.read_text() for path in places]
    config = checkout / "router_inference" / "config" / "router.json"
    config.write_text("mine")
    refused("pass --overwrite", *given(job, checkout, "--lam", 0))
    assert [path.read_text() for path in places] == ["mine", *before[1:]]
    succeeded(*given(job, checkout, "--lam", 0, "--overwrite"))
    assert config.read_text() == before[0]
    assert not list(checkout.rglob("*.tmp"))


def test_what_they_would_refuse_is_not_written(job: Job, checkout: Path, tmp_path: Path) -> None:
    encoder = ("--encoder-folder", job.tiny)
    asked = ("export", job.router, "--router-arena", tmp_path / "out")
    refused("was fitted on", *asked, "--data", job.answers, *encoder)
    data = checkout / "dataset" / "router_data.json"
    other = write_questions(tmp_path / "other.json", {"else": "x"})
    refused("no reworded question", *asked, "--data", data, *encoder, "--paraphrases", other)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "holds no question"),
        ([3], "entry 1: is a int"),
        ([{"global index": "a"}], "entry 1: prompt"),
        ([{"prompt": "x"}], "entry 1: global index"),
        ([{"global index": "a", "prompt": "x"}] * 2, "entry 2: global index 'a' was there before"),
        ({}, "it must be a list"),
    ],
)
def test_questions_that_cannot_be_read(
    job: Job, tmp_path: Path, content: object, reason: str
) -> None:
    (tmp_path / "q.json").write_text(json.dumps(content))
    asked = ("export", job.router, "--router-arena", tmp_path / "out")
    refused(reason, *asked, "--data", tmp_path / "q.json")


def test_words_that_exclude_each_other() -> None:
    arena = ("export", "gone", "--router-arena", "a")
    malformed("needs --data", *arena)
    malformed("leave out --out", *arena, "--data", "d", "--out", "b")
    malformed("leave out --data, --lam", "export", "gone", "--out", "b", "--lam=1", "--data", "d")
    malformed("leave out --switchyard", *arena, "--data", "d", "--switchyard", "b")
    malformed("rename the folder", "export", "x-robustness", *arena[2:], "--data", "d")
