"""Nothing of another origin is replaced unless that is asked for; the same command may go again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from matplotlib.figure import Figure

from packages.gateway.tests.receipts import example_receipts
from packages.router.tests.commands import FIT, Job, check_refused, run, run_ok
from packages.router.tests.grading import graded_runs
from prefill_router.cli.application import ExitCode
from prefill_router.data import read_dataset, write_dataset
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

REFUSED = "pass --overwrite"
TABLE = "prompt,target,correct\np,a,1\np,b,0\n"


@pytest.fixture(scope="module", autouse=True)
def empty_figures() -> Iterator[None]:
    """Drawing is the most of a report's time, and each is drawn anew."""
    save = Figure.savefig

    def save_empty(figure: Figure, *place: Any, **how: Any) -> None:
        del figure
        save(Figure((1, 1)), *place, **how)

    with mock.patch.object(Figure, "savefig", save_empty):
        yield


def content(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_import(tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text(TABLE)
    out = tmp_path / "out"
    run_ok("import", "long", tmp_path / "one.csv", "--out", out)
    (tmp_path / "one.csv").write_text(TABLE + "q,a,1\n")
    run_ok("import", "long", tmp_path / "one.csv", "--out", out)
    assert len(read_dataset(out)) == 2
    before = content(out)
    check_refused(REFUSED, "import", "long", tmp_path / "two.csv", "--out", out)
    assert content(out) == before
    run_ok("import", "long", tmp_path / "two.csv", "--out", out, "--overwrite")
    assert len(read_dataset(out)) == 1


def test_a_dataset_of_unknown_origin(tmp_path: Path) -> None:
    write_dataset(make_routing_dataset(queries=5), tmp_path / "out")
    (tmp_path / "t.csv").write_text(TABLE)
    check_refused(
        "of an unknown origin", "import", "long", tmp_path / "t.csv", "--out", tmp_path / "out"
    )


def test_what_is_no_dataset_stays_whatever_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    imported = ("import", "long", tmp_path / "t.csv", "--out", tmp_path, "--overwrite")
    check_refused("exists and isn't a dataset", *imported)


def test_export(tmp_path: Path) -> None:
    example_receipts.write_traffic(tmp_path / "one.sqlite", make_routing_dataset(queries=9))
    shutil.copy(tmp_path / "one.sqlite", tmp_path / "two.sqlite")
    out = tmp_path / "out"
    run_ok("export-receipts", tmp_path / "one.sqlite", "--out", out)
    run_ok("export-receipts", f"sqlite:///{tmp_path / 'one.sqlite'}", "--out", out)
    before = content(out)
    check_refused(REFUSED, "export-receipts", tmp_path / "two.sqlite", "--out", out)
    assert content(out) == before
    run_ok("export-receipts", tmp_path / "two.sqlite", "--out", out, "--overwrite")


def test_grade(tmp_path: Path) -> None:
    for name in ("one", "two"):
        graded_runs.every_kind(tmp_path / name)
    skip = [part for name in ("python", "judge") for part in ("--skip", name)]
    out = ("--out", tmp_path / "out", *skip)
    for _ in range(2):
        run_ok("grade", tmp_path / "one", *out)
    check_refused(REFUSED, "grade", tmp_path / "two", *out)


def test_split(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "split.json"
    for _ in range(2):
        run_ok("split", job.answers, "--out", out)
    before = content(out)
    check_refused(REFUSED, "split", job.answers, "--seed", 1, "--out", out)
    assert content(out) == before
    run_ok("split", job.answers, "--seed", 1, "--out", out, "--overwrite")
    assert json.loads(out.read_text())["seed"] == 1
    (tmp_path / "notes.json").write_text("{}")
    check_refused(REFUSED, "split", job.answers, "--out", tmp_path / "notes.json")


def test_fit(copy: Job, tmp_path: Path) -> None:
    fit = (*FIT, copy.answers, "--store", copy.states, "--dim", 8, "--out", copy.router)
    same = (*fit, "--split", copy.split)
    run_ok(*same)
    before = content(copy.router)
    check_refused(REFUSED, *fit, "--seed", 1)
    check_refused(REFUSED, *same, "--dim", 4)
    write_dataset(make_routing_dataset(queries=80, missing=0.1), tmp_path / "other")
    other = [tmp_path / "other" if word == copy.answers else word for word in same]
    check_refused(REFUSED, *other)
    assert content(copy.router) == before
    notes = router_notes(copy.router)
    prices = ("--prices", copy.answers / "pool.yaml", "--date", "2027-01-01")
    run_ok("reprice", copy.router, *prices)
    assert router_notes(copy.router) != notes
    check_refused("prices changed since", *same)
    run_ok(*same, "--overwrite")
    assert router_notes(copy.router) == notes


def router_notes(router: Path) -> list[str]:
    notes: list[str] = json.loads(run_ok("show", router, "--json"))["notes"]
    return notes


def test_a_router_that_can_not_be_read_is_replaced_only_where_that_is_said(copy: Job) -> None:
    (copy.router / "router.json").write_text("{}")
    fit = (*FIT, copy.answers, "--store", copy.states, "--dim", 8, "--out", copy.router)
    check_refused("can't be read; .* --overwrite", *fit, "--split", copy.split)


def test_reprice(copy: Job, tmp_path: Path) -> None:
    reprice = ("reprice", copy.router, "--prices", copy.answers / "pool.yaml", "--out")
    for _ in range(2):
        run_ok(*reprice, tmp_path / "new")
    fit = ("fit", "--no-verdict", copy.answers, "--store", copy.states, "--dim", 4)
    run_ok(*fit, "--out", tmp_path / "other")
    check_refused(f"has another router.*{REFUSED}", *reprice, tmp_path / "other")
    run_ok(*reprice, tmp_path / "other", "--overwrite")


PRICES = "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"


@pytest.mark.parametrize(
    ("rows", "date", "reason"),
    [
        (
            "target-1,1,1\ntarget1,1,1\n",
            (),
            r"unknown targets \['target1'\] \(did you mean 'target-",
        ),
        ("somebody,1,1\n", (), r"prices\.csv: unknown targets \['somebody'\]; the pool has"),
        ("target-1,1,1\n", ("--date", "2026-13-45"), "'2026-13-45', which isn't a date"),
        ("target-1,1,1\n", ("--date", "tomorrow"), "write it as 2026-11-20"),
        ("target-1,200000,1\n", (), "has the price 200000"),
    ],
)
def test_reprice_takes_no_names_of_others_and_no_days_that_are_none(
    copy: Job, tmp_path: Path, rows: str, date: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "prices.csv").write_text(PRICES + rows)
    before = content(copy.router)
    words = ("reprice", copy.router, "--prices", tmp_path / "prices.csv", *date)
    check_refused(reason, *words, code=2 if date else 1)
    assert content(copy.router) == before


def test_a_dataset_of_one_target_leaves_nothing_to_route(job: Job, tmp_path: Path) -> None:
    dataset = read_dataset(job.answers)
    write_dataset(dataset.select(targets=["target-1"]), tmp_path / "one")
    fit = (*FIT, tmp_path / "one", "--store", job.states, "--out", tmp_path / "router")
    check_refused("nothing to route: the dataset has one target, 'target-1'.*merge", *fit)


def test_tasks(tmp_path: Path) -> None:
    mini = ("minipool", "tasks", "--count", 5, "--out", tmp_path / "mini.jsonl")
    (tmp_path / "own.jsonl").write_text('{"prompt": "p", "answer": "a", "grader": "exact"}\n')
    own = ("tasks", tmp_path / "own.jsonl", "--out", tmp_path / "tasks.jsonl")
    for words, other in ((mini, ("--seed", 1)), (own, ())):
        out = words[-1]
        for _ in range(2):
            run_ok(*words)
        if not other:
            out.write_text("notes\n")
        before = content(out)
        check_refused(REFUSED, *words, *other)
        assert content(out) == before
        assert not list(tmp_path.glob(".*"))
        run_ok(*words, *other, "--overwrite")
        assert content(out) != before


MODELS = "model_list:\n- model_name: a\n  litellm_params: {{model: openai/{}}}\n"


def test_litellm_writes_both_files_or_neither(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(MODELS.format("one"))
    words = ("import-litellm", tmp_path / "config.yaml", "--out", tmp_path / "pool.yaml")
    for _ in range(2):
        run_ok(*words)
    before = content(tmp_path / "pool.yaml")
    (tmp_path / "config.yaml").write_text(MODELS.format("two"))
    check_refused(REFUSED, *words, "--settings", tmp_path / "gateway.yaml")
    assert content(tmp_path / "pool.yaml") == before
    assert not (tmp_path / "gateway.yaml").exists()
    (tmp_path / "gateway.yaml").write_text("notes: 1\n")
    check_refused(
        REFUSED, *words[:-1], tmp_path / "new.yaml", "--settings", tmp_path / "gateway.yaml"
    )
    assert not (tmp_path / "new.yaml").exists()
    run_ok(*words, "--settings", tmp_path / "gateway.yaml", "--overwrite")
    assert content(tmp_path / "pool.yaml") != before


def test_prices(tmp_path: Path) -> None:
    pool, out = tmp_path / "pool.yaml", tmp_path / "new.yaml"
    pool.write_text("targets:\n- name: a\n  model: a/b\n")
    pricing = {"prompt": "0.000001", "completion": "0.000002"}
    models = {"data": [{"id": "a/b", "pricing": pricing}]}
    (tmp_path / "list.json").write_text(json.dumps(models))
    words = ("prices", "--pool", pool, "--from", tmp_path / "list.json")
    out.write_text("notes: 1\n")
    check_refused(REFUSED, *words, "--out", out)
    assert out.read_text() == "notes: 1\n"
    for extra in ("--overwrite",), ():
        run_ok(*words, "--out", out, *extra)
    run_ok(*words)
    run_ok(*words, "--out", pool)


def test_reports(copy: Job, tmp_path: Path) -> None:
    shutil.copytree(copy.router, tmp_path / "other")
    states = ("--store", copy.states, "--resamples", 20)
    for command, more in (("evaluate", ()), ("doctor", ("--no-probe",))):
        report = ("--data", copy.answers, *states, *more, "--out", tmp_path / command)
        result = run(command, copy.router, *report)
        assert run(command, copy.router, *report).code == result.code != ExitCode.UNUSABLE
        before = content(tmp_path / command)
        reason = f"made by {command} from router, answers.*{REFUSED}"
        check_refused(reason, command, tmp_path / "other", *report)
        assert content(tmp_path / command) == before
        assert run(command, tmp_path / "other", *report, "--overwrite").code == result.code


def test_comparisons(copy: Job, tmp_path: Path) -> None:
    predictor = "{kind: logistic, c: 1.0, scaling: each}"
    recipes = f"routers:\n  one: {{features: [{{kind: complexity}}], predictor: {predictor}}}\n"
    (tmp_path / "config.yaml").write_text(recipes)
    words = ("compare", tmp_path / "config.yaml", "--resamples", 10, "--out", tmp_path / "out")
    for _ in range(2):
        run_ok(*words, "--data", copy.answers)
    shutil.copytree(copy.answers, tmp_path / "more")
    before = content(tmp_path / "out")
    check_refused(REFUSED, *words, "--data", tmp_path / "more")
    assert content(tmp_path / "out") == before
    run_ok(*words, "--data", tmp_path / "more", "--overwrite")
