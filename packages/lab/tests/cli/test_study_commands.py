"""The studies on the command line: what they write, what they refuse, that they go on."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from packages.router.tests.commands import Job, check_malformed, check_refused, run, run_ok
from prefill_router.data import read_dataset

pytestmark = pytest.mark.slow

TRUNK = "{kind: shared_trunk, seeds: 1, keep: 1, max_epochs: 3}"
ROUTERS = f"""
routers:
  network: {{features: {{kind: prefill, dim: 4}}, predictor: {TRUNK}}}
  near ones: {{features: {{kind: prefill, dim: 4}}, predictor: {{kind: knn_score, k: 5}}}}
"""
STUDIES = {
    "seeds": ("--count", 2),
    "ratio": ("--resamples", 20),
    "shift": ("--train-on", "benchmark-0", "--test-on", "benchmark-1", "--resamples", 20),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "routers.yaml"
    path.write_text(ROUTERS)
    return path


def study_arguments(job: Job, config: Path, name: str) -> tuple[object, ...]:
    common = ("--data", job.answers, "--store", job.states, *STUDIES[name])
    return ("study", name, config, *common)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_written_and_goes_on_where_it_was(
    name: str, job: Job, config: Path, tmp_path: Path
) -> None:
    arguments = (*study_arguments(job, config, name), "--out", tmp_path / "s", "--split", job.split)
    text = run_ok(*arguments)
    assert "network" in text
    assert f"report: {tmp_path / 's' / 'index.html'}" in text
    output = json.loads((tmp_path / "s" / f"{name}.json").read_text())
    assert set(output["routers"]) == {"network", "near ones"}
    routers = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("router.json")}
    assert len(routers) == {"seeds": 4, "ratio": 2, "shift": 6}[name]
    (tmp_path / "s" / "index.html").unlink()
    again = json.loads(run_ok(*arguments, "--json"))
    assert again["routers"] == output["routers"]
    assert (tmp_path / "s" / "index.html").exists()
    assert {p: p.stat().st_mtime_ns for p in routers} == routers


@pytest.mark.parametrize("name", STUDIES)
def test_a_folder_of_something_else_is_left_alone(
    name: str, job: Job, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    check_refused("exists and is no study", *study_arguments(job, config, name), "--out", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_router_is_studied_by_its_folder(job: Job, tmp_path: Path) -> None:
    arguments = ("--data", job.answers, "--store", job.states, "--out", tmp_path / "ratio")
    output = json.loads(
        run_ok("study", "ratio", job.router, *arguments, "--resamples", 5, "--json")
    )
    assert list(output["routers"]) == [job.router.name]
    assert not (tmp_path / "ratio" / "routers").exists()
    known = json.loads((tmp_path / "ratio" / "ratio.json").read_text())["known"]
    assert "the most accurate on the train part" in known["chosen"]


def test_the_strong_target_can_be_named(job: Job, config: Path, tmp_path: Path) -> None:
    arguments = (
        *study_arguments(job, config, "ratio"),
        "--out",
        tmp_path / "s",
        "--split",
        job.split,
    )
    output = json.loads(run_ok(*arguments, "--strong", "target-0", "--json"))
    assert output["strong"] == "target-0"
    check_malformed("--strong-by is 'luck'", *arguments, "--strong-by", "luck")


def test_dimensions(job: Job, tmp_path: Path) -> None:
    arguments = ("study", "dimensions", job.answers, "--store", job.states)
    to = ("--out", tmp_path / "d")
    output = json.loads(run_ok(*arguments, *to, "--dims", "2,4", "--split", job.split, "--json"))
    assert {cell["dim"] for cell in output["cells"]} == {2, 4}
    assert (tmp_path / "d" / "figures" / "dimensions.png").stat().st_size > 1000
    assert "report:" in run_ok(*arguments, *to, "--dims", "2", "--pooling", "mean")
    for dims in ("", "0", "2,x"):
        check_malformed("give numbers from 1 up", *arguments, *to, "--dims", dims)


def test_layers_over_pools_and_encoders(job: Job, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(job.answers, target_is_directory=True)
    arguments = ("study", "layers", "--store", job.states, "--out", tmp_path / "l", "--dim", 4)
    both = (job.answers, tmp_path / "copy")
    shutil.copytree(job.answers, tmp_path / "copy")
    output = json.loads(run_ok(*arguments, *both, "--json"))
    assert [row["pool"] for row in output["rows"]] == ["answers", "copy"]
    check_refused("a name of its own", *arguments, job.answers, other)


def test_what_makes_no_sense_is_refused(job: Job, config: Path, tmp_path: Path) -> None:
    to = ("--out", tmp_path / "s")
    plain = {name: study_arguments(job, config, name)[:7] for name in STUDIES}
    check_malformed("--count is 1; it must be 2 or more", *plain["seeds"], *to, "--count", 1)
    check_malformed("must be 0 or more", *plain["ratio"], *to, "--seed", -1)
    check_malformed("one of these", *plain["shift"], *to)
    check_malformed("one of these", *plain["shift"], *to, "--train-on", "benchmark-0")
    check_malformed(
        "one of these", *plain["shift"], *to, "--hold-out", "a", "--preset", "mmlu-pro-stem"
    )
    check_refused("no preset 'arts'", *plain["shift"], *to, "--preset", "arts", code=2)
    check_refused("no query is of", *plain["shift"], *to, "--preset", "mmlu-pro-stem")
    check_refused("has no benchmarks and no domains", *plain["shift"], *to, "--hold-out", "poetry")
    check_refused("strong target is 'nobody'", *plain["ratio"], *to, "--strong", "nobody")
    check_refused(
        "no such file", "study", "seeds", tmp_path / "nothing.yaml", "--data", job.answers, *to
    )
    assert not (tmp_path / "s").exists()


def test_robustness(job: Job, tmp_path: Path) -> None:
    dataset = read_dataset(job.answers)
    others = [{"global index": q.id, "prompt": f"Say: {q.prompt}"} for q in dataset.queries[:50]]
    (tmp_path / "others.json").write_text(json.dumps(others))
    arguments = ("study", "robustness", job.router, "--data", job.answers, "--store", job.states)
    encoder = ("--encoder-folder", job.tiny, "--resamples", 20)
    more_arguments = (
        *arguments,
        *encoder,
        "--paraphrases",
        tmp_path / "others.json",
        "--out",
        tmp_path / "r",
    )
    output = json.loads(run_ok(*more_arguments, "--sample", 10, "--json"))
    assert set(output["kinds"]) == {"typos", "paraphrases"}
    assert output["kinds"]["typos"]["queries"] == output["queries"] == 10
    assert set(output["unchanged"]) == {"wording", "options"}
    rows = (tmp_path / "r" / "figures" / "robustness.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * len(output["kinds"])
    text = run_ok(*more_arguments, "--typos", 0.5, "--lam", 0.9)
    assert "At lam = 0.9" in text
    assert f"report: {tmp_path / 'r' / 'index.html'}" in text
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("mine")
    check_refused("exists and is no study", *arguments, "--out", tmp_path / "thesis")
    check_malformed("--typos is 0", *arguments, "--out", tmp_path / "s", "--typos", 0)
    (tmp_path / "others.json").write_text('[{"global index": "z", "prompt": "x"}]')
    check_refused("none of the 1 paraphrases", *more_arguments)


def test_help_of_every_study_has_an_example() -> None:
    for name in (*STUDIES, "dimensions", "layers", "robustness"):
        text = " ".join(run("study", name, "--help").out.split())
        assert f"Example: prefill-router study {name}" in text
        assert "--json" in text


@pytest.mark.parametrize("name", STUDIES)
def test_nothing_that_can_be_fitted_is_an_error(
    name: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    (tmp_path / "trees.yaml").write_text("routers: {trees: {predictor: xgboost}}")
    check_refused(
        "no router could be fitted; trees: ",
        *study_arguments(job, tmp_path / "trees.yaml", name),
        *("--out", tmp_path / "s", "--split", job.split),
    )
    assert not (tmp_path / "s" / "index.html").exists()
