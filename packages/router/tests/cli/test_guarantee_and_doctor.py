"""`guarantee` and `doctor` on the command line: output, exit codes, and what they refuse."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.commands import Job, check_malformed, check_refused, flip, run
from prefill_router.data import Query, load_split, read_dataset, write_dataset
from prefill_router.guarantee import best_single
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow


def router_arguments(job: Job) -> tuple[object, ...]:
    return (job.router, "--data", job.answers, "--store", job.states)


@pytest.fixture(scope="module")
def new_answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other questions to the same targets, with ids of their own."""
    folder = tmp_path_factory.mktemp("newer") / "answers"
    dataset = make_routing_dataset(queries=40, seed=5)
    rows = tuple(Query(f"new{q.id}", q.prompt, q.benchmark, q.domain) for q in dataset.queries)
    write_dataset(replace(dataset, queries=rows), folder)
    return folder


def test_guarantee_that_promises_little_finds_a_lam(job: Job) -> None:
    result = run("guarantee", *router_arguments(job), "--keep", 0.05, "--confidence", 0.6, "--json")
    summary = json.loads(result.out)
    assert result.code == 0
    assert summary["lam"] is not None
    assert summary["keep"] == 0.05
    assert summary["best"] in read_dataset(job.answers).pool.names
    words = run("guarantee", *router_arguments(job), "--keep", 0.05, "--confidence", 0.6)
    assert words.code == 0
    assert "keeps at least 5 %" in words.out


def test_guarantee_that_promises_much_says_none(job: Job) -> None:
    result = run("guarantee", *router_arguments(job), "--resamples", 10)
    assert result.code == 3
    assert result.out.startswith("none: no lam can be guaranteed")
    summary = json.loads(run("guarantee", *router_arguments(job), "--json", "--resamples", 10).out)
    assert (summary["lam"], summary["queries"] > 0) == (None, True)
    assert summary["advice"]


def test_guarantee_on_new_queries_needs_the_name_of_the_best_target(
    job: Job, new_answers: Path
) -> None:
    encoder = ("--encoder-folder", job.tiny)
    new = ("guarantee", job.router, "--data", new_answers, "--part", "unseen", *encoder)
    check_refused("--best TARGET", *new)
    result = run(*new, "--best", "target-2", "--keep", 0.3, "--json")
    assert result.code in (0, 3)
    assert json.loads(result.out)["queries"] == 40


def test_guarantee_takes_the_best_target_of_the_train_part_whatever_the_judged_queries_say(
    copy: Job,
) -> None:
    answers, split = read_dataset(copy.answers), load_split(copy.split)
    train, test = (answers.select(split[part]) for part in ("train", "test"))
    best = answers.pool.names.index(best_single(train))
    correct = answers.correct.copy()
    correct[answers.rows(split["test"])] = 1
    correct[answers.rows(split["test"]), best] = 0
    write_dataset(replace(answers, correct=correct), copy.answers)
    summary = json.loads(run("guarantee", *router_arguments(copy), "--json", "--resamples", 0).out)
    assert summary["best"] == answers.pool.names[best]
    assert summary["best_accuracy"]["value"] == 0
    assert len(test) == summary["queries"]


def test_guarantee_tells_which_labels_are_missing_and_what_became_of_them(copy: Job) -> None:
    answers, test = read_dataset(copy.answers), load_split(copy.split)["test"]
    correct = answers.correct.copy()
    rows = [row for row in answers.rows(test) if answers.queries[row].domain == "domain-1"]
    correct[rows] = np.nan
    write_dataset(replace(answers, correct=correct), copy.answers)
    promise = (*router_arguments(copy), "--keep", 0.05, "--confidence", 0.6, "--resamples", 10)
    summary = json.loads(run("guarantee", *promise, "--json").out)
    assert (summary["assume"], summary["bounded"]) == ("nothing", True)
    assert summary["missing"]["queries"] >= len(rows) > 0
    places = {cell["domain"] for cell in summary["missing"]["where"]}
    assert places >= {answers.queries[row].benchmark + " / domain-1" for row in rows}
    words = run("guarantee", *promise).out
    assert f"{summary['missing']['queries']} queries lack a label" in words
    assert "counts as the worst that it could be" in words
    assumed = json.loads(run("guarantee", *promise, "--json", "--assume", "missing-at-random").out)
    assert assumed["assume"] == "missing-at-random"


def test_guarantee_refuses(job: Job, new_answers: Path) -> None:
    check_refused(
        "--assume is 'luck'", "guarantee", *router_arguments(job), "--assume", "luck", code=2
    )
    check_malformed("keep is 3", "guarantee", *router_arguments(job), "--keep", 3)
    check_malformed("confidence is 1", "guarantee", *router_arguments(job), "--confidence", 1)
    check_refused("no target 'nobody'", "guarantee", *router_arguments(job), "--best", "nobody")
    check_malformed("must be one of", "guarantee", *router_arguments(job), "--part", "train")
    check_refused(
        "no part 'calibration'", "guarantee", *router_arguments(job), "--part", "calibration"
    )
    check_refused("--best TARGET", "guarantee", job.router, "--data", new_answers)


def test_doctor_says_its_verdict_and_ends_with_its_code(job: Job, tmp_path: Path) -> None:
    options = ("--resamples", 40, "--lam", 0.9, "--no-probe", "--robustness", 0)
    result = run("doctor", *router_arguments(job), *options, "--out", tmp_path / "out", "--json")
    summary = json.loads(result.out)
    codes = {"worth it": 0, "not worth it": 4, "can't tell": 5}
    assert result.code == codes[summary["verdict"]]
    assert summary == {
        key: value
        for key, value in json.loads((tmp_path / "out" / "doctor.json").read_text()).items()
        if key not in ("title", "facts")
    }
    assert "distance" in summary["checks"]
    assert "wasn't probed" in summary["notes"][0]
    assert "flip wasn't measured: it was left out" in summary["notes"][1]
    words = run("doctor", *router_arguments(job), *options)
    assert words.code == result.code
    assert f"verdict: {summary['verdict']}" in words.out


def test_doctor_probes_and_perturbs_with_the_encoder_or_says_why_not(job: Job) -> None:
    options = ("--resamples", 20, "--json")
    probed = run(
        "doctor", *router_arguments(job), *options, "--encoder-folder", job.tiny, "--robustness", 9
    )
    checks = json.loads(probed.out)["checks"]
    assert "nonsense" in checks
    flips = checks["robustness"]["numbers"]
    assert (flips["queries"], set(flips["kinds"])) == (9, {"typos"})
    assert "of 9 flip" in checks["robustness"]["said"]
    unprobed = json.loads(run("doctor", *router_arguments(job), *options).out)
    assert not {"nonsense", "robustness"} & set(unprobed["checks"])
    for words in ("wasn't probed", "flip wasn't measured"):
        assert any(words in note for note in unprobed["notes"])


def test_doctor_refuses(job: Job, copy: Job, new_answers: Path) -> None:
    check_malformed("lam is 2", "doctor", *router_arguments(job), "--lam", 2)
    check_malformed("--seed is -1", "doctor", *router_arguments(job), "--seed", -1, "--no-probe")
    check_malformed(
        "resamples is 19; it must be 20 or more",
        "doctor",
        *router_arguments(job),
        "--resamples",
        19,
    )
    check_refused("isn't a check-up", "doctor", *router_arguments(job), "--out", job.answers)
    check_refused(
        "give the whole dataset", "doctor", job.router, "--data", new_answers, "--part", "unseen"
    )
    shutil.rmtree(copy.answers)
    check_refused("answers", "doctor", *router_arguments(copy))
    flip(copy.router / "weights.safetensors")
    check_refused("isn't what was written", "guarantee", copy.router, "--data", job.answers)
