"""`study end-to-end` and `study learning` on the command line: what they write and refuse."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from packages.router.tests.commands import (
    SEALED_FIT,
    Job,
    check_malformed,
    check_refused,
    flip,
    run_ok,
)
from prefill_router.data import Prompt, Query, read_dataset
from prefill_router.endpoints import Reply, Usage
from prefill_router.runs import Task
from prefill_router.targets import Pool
from prefill_router_lab.collection.job import collect

pytestmark = pytest.mark.slow

SPEEDS = "targets:\n" + "".join(
    f"  target-{k}: {{ttft_seconds: 0.{k + 1}, tokens_per_second: {200 - 50 * k}}}\n"
    for k in range(3)
)
PAGE = ("index.html", "study.json", "figures")


class Slow:
    """An asker whose answers all take as long."""

    async def __aenter__(self) -> "Slow":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ask(self, target: str, prompt: Prompt, /) -> Reply:
        del target, prompt
        usage = Usage(input_tokens=8, output_tokens=9)
        return Reply(text="yes", finish_reason="stop", usage=usage, seconds=7.0)


def make_run(folder: Path, pool: Pool, query: Query) -> None:
    targets = tuple(replace(t, base_url="http://127.0.0.1:9/v1") for t in pool)
    task = Task(query=query, grader="exact", answer=("yes",))
    collect(folder, replace(pool, targets=targets), [task], asker=Slow())


@pytest.fixture
def speeds(tmp_path: Path) -> Path:
    path = tmp_path / "speeds.yaml"
    path.write_text(SPEEDS)
    return path


def router_of(job: Job) -> tuple[object, ...]:
    return ("study", "end-to-end", job.router, "--data", job.answers, "--store", job.states)


def test_everything_is_counted_and_written(job: Job, speeds: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--encoder-price", 0.5, "--speeds", speeds, "--routing-ms", 20, "--resamples", 20)
    output = json.loads(run_ok(*router_of(job), *options, "--out", out, "--json"))
    written = json.loads((out / "end-to-end.json").read_text())
    assert output.items() <= written.items()
    argmax = output["points"][0]["systems"]["router"]
    assert argmax["encoder_cost"]["value"] > 0
    assert argmax["routing_seconds"]["value"] == 0.02
    assert output["latency"]["router"]["source"] == "given"
    data = read_dataset(job.answers)
    train = data.select(json.loads((job.router / "split.json").read_text())["parts"]["train"])
    summed = dict(zip(train.pool.names, (train.correct == 1).sum(axis=0), strict=True))
    assert summed[output["best_single"]] == max(summed.values())
    assert {path.name for path in out.iterdir()} >= {*PAGE, "systems.csv", "areas.csv"}
    page = (out / "index.html").read_text()
    assert "encoder charged" in page
    assert "$0.5 per million" in page
    text = run_ok(*router_of(job), *options, "--lam", 0.3, "--out", out)
    assert "At lam = 0.3 the router costs" in text


def test_decisions_are_timed_with_the_encoder(job: Job, tmp_path: Path) -> None:
    arguments = (*router_of(job), "--per-hour", 1.2, "--sample", 4, "--resamples", 5, "--rounds", 2)
    arguments = (
        *arguments,
        "--reference",
        job.router,
        "--reference-ms",
        1,
        "--out",
        tmp_path / "out",
    )
    check_refused("can't be timed here.*--routing-ms", *arguments)
    output = json.loads(run_ok(*arguments, "--encoder-folder", job.tiny, "--json"))
    timed = output["latency"]["router"]
    assert (timed["decisions"], timed["rounds"]) == (8, 2)
    assert 0 < timed["median_seconds"]["lower"] <= timed["median_seconds"]["upper"]
    assert output["points"][0]["against"]["reference"]["accuracy_gain"]["value"] == 0
    assert output["timing"] == ""
    assert output["points"][0]["systems"]["router"]["answer_seconds"]["value"] is None


def test_times_of_a_run_come_before_speeds(job: Job, speeds: Path, tmp_path: Path) -> None:
    data = read_dataset(job.answers)
    test = json.loads((job.router / "split.json").read_text())["parts"]["test"]
    make_run(tmp_path / "run", data.pool, data.queries[data.rows(test)[0]])
    options = ("--encoder-price", 0, "--routing-ms", 5, "--resamples", 5, "--run", tmp_path / "run")
    out = ("--out", tmp_path / "out", "--json")
    alone = json.loads(run_ok(*router_of(job), *options, *out))
    assert alone["points"][0]["systems"]["router"]["answer_seconds"]["value"] == pytest.approx(7)
    output = json.loads(run_ok(*router_of(job), *options, "--speeds", speeds, *out))
    assert "measured" in output["timing"]
    assert "speeds.yaml" in output["timing"]
    assert output["points"][0]["systems"]["router"]["answer_seconds"]["value"] < 7


def test_end_to_end_refuses(job: Job, copy: Job, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    base = (*router_of(job), "--routing-ms", 5)
    check_refused("needs one price", *base, *out)
    check_refused("needs one price", *base, *out, "--encoder-price", 1, "--per-hour", 1)
    priced = (*base, "--encoder-price", 1)
    check_malformed("lam is 3", *priced, *out, "--lam", 3)
    check_refused("no target 'nobody'", *priced, *out, "--best", "nobody")
    check_malformed("--rounds is 0", *priced, *out, "--rounds", 0)
    check_malformed("--sample is 0", *priced, *out, "--sample", 0)
    check_refused("is no study 'end-to-end'", *priced, "--out", job.answers)
    check_refused("run.json", *priced, *out, "--run", job.answers)
    few = tmp_path / "few.yaml"
    few.write_text("targets: {target-0: {ttft_seconds: 1, tokens_per_second: 9}}")
    check_refused("lacks the targets", *priced, *out, "--speeds", few)
    check_refused("no such file", *priced, *out, "--speeds", tmp_path / "none.csv")
    other = tmp_path / "other"
    run_ok(*SEALED_FIT, job.answers, "--store", job.states, "--dim", 4, "--seed", 5, "--out", other)
    check_refused("reference was fitted on", *priced, *out, "--reference", other)
    flip(copy.router / "weights.safetensors")
    check_refused("isn't what was written", *priced, *out, "--reference", copy.router)


@pytest.fixture
def config(tmp_path: Path, job: Job) -> Path:
    path = tmp_path / "routers.yaml"
    recipe = "features: {kind: prefill, dim: 4, select: mean.2}, predictor: logistic"
    path.write_text(f"routers:\n  small: {{{recipe}}}\n")
    del job
    return path


def test_learning_curves_are_drawn_and_gone_on_with(job: Job, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("study", "learning", config, "--data", job.answers, "--store", job.states)
    sizes = ("--shares", "0.5", "--measured", "1", "--draws", 2, "--resamples", 10)
    output = json.loads(run_ok(*arguments, *sizes, "--out", out, "--json"))
    points = output["routers"]["small"]["points"]
    assert [(p["share"], p["measured"]) for p in points] == [
        (0.5, None),
        (1.0, 1),
        (1.0, None),
    ]
    assert output["routers"]["small"]["verdict"]
    times = {path: path.stat().st_mtime_ns for path in (out / "fits").iterdir()}
    assert len(times) == 6
    text = run_ok(*arguments, *sizes, "--out", out)
    assert times == {path: path.stat().st_mtime_ns for path in (out / "fits").iterdir()}
    assert "small: " in text
    assert {path.name for path in out.iterdir()} >= {*PAGE, "learning.json", "sizes.csv"}


def test_learning_refuses(job: Job, config: Path, tmp_path: Path) -> None:
    arguments = ("study", "learning", config, "--data", job.answers, "--store", job.states)
    out = ("--out", tmp_path / "out")
    check_malformed("--shares is 'x'", *arguments, *out, "--shares", "x")
    check_refused("share of the queries is 2", *arguments, *out, "--shares", "2")
    check_malformed("whole numbers", *arguments, *out, "--measured", "1.5")
    check_malformed("--draws is 1; it must be 2 or more", *arguments, *out, "--draws", 1)
    check_malformed("resamples", *arguments, *out, "--resamples", 0)
    check_refused("is no study 'learning'", *arguments, "--out", job.answers)
