import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from packages.router.tests.commands import FIT, SEALED_FIT, Job, check_refused, run_ok
from prefill_router.data import read_dataset, save_split, split, write_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def constant_router(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router that knows nothing, on the split of the job's router."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "recipe.yaml").write_text("features: prefill\npredictor: constant\n")
    fit = (*SEALED_FIT, job.answers, "--store", job.states, "--recipe", folder / "recipe.yaml")
    run_ok(*fit, "--out", folder / "router")
    return folder / "router"


def test_the_better_router_is_named(job: Job, constant_router: Path) -> None:
    with_states = ("--data", job.answers, "--store", job.states)
    output = run_ok("compare", job.router, constant_router, *with_states)
    assert re.search(r"Mean AUC\s.*\+0\.\d+ .* better", output)
    assert " ".join(output.split()).count("over price alone") == 2
    comparison = json.loads(run_ok("compare", constant_router, job.router, *with_states, "--json"))
    assert comparison["verdicts"]["second"]["curve"][0]["price_alone"]["gain"]["value"] is not None
    assert comparison["auc_mean"]["difference"]["upper"] < 0
    assert comparison["auc_mean"]["significant"]
    assert comparison["queries"] == len(split(read_dataset(job.answers))["test"])


def test_a_router_does_not_differ_from_itself(job: Job) -> None:
    with_states = ("--data", job.answers, "--store", job.states)
    comparison = json.loads(run_ok("compare", job.router, job.router, *with_states, "--json"))
    for name, numbers in comparison.items():
        if name not in ("queries", "verdicts") and numbers["difference"]["value"] is not None:
            assert numbers["difference"]["value"] == 0
            assert not numbers["significant"]


def test_queries_that_one_learned_from_are_left_out(job: Job, tmp_path: Path) -> None:
    save_split(split(read_dataset(job.answers), seed=1), tmp_path / "split.json")
    (tmp_path / "recipe.yaml").write_text("features: prefill\npredictor: constant\n")
    fit = (*FIT, job.answers, "--store", job.states, "--recipe", tmp_path / "recipe.yaml")
    run_ok(*fit, "--split", tmp_path / "split.json", "--out", tmp_path / "router")
    with_states = ("--data", job.answers, "--store", job.states)
    command = ("compare", job.router, tmp_path / "router", *with_states, "--json")
    comparison = json.loads(run_ok(*command))
    splits = [split(read_dataset(job.answers), seed=seed) for seed in (0, 1)]
    common = set(splits[0]["test"]) & set(splits[1]["test"])
    assert comparison["queries"] == len(common) < len(splits[0]["test"])


def test_other_data_are_refused(job: Job, tmp_path: Path) -> None:
    dataset = read_dataset(job.answers)
    write_dataset(dataset.select(split(dataset)["train"]), tmp_path / "train")
    check_refused(
        "no query that both routers",
        "compare",
        job.router,
        job.router,
        "--data",
        tmp_path / "train",
    )


def test_turns_of_conversations_that_one_learned_from_are_left_out(
    job: Job, tmp_path: Path
) -> None:
    dataset = read_dataset(job.answers)
    parts = split(dataset)
    count = len(parts["test"]) // 2
    train_of = dict(zip(parts["test"][:count], parts["train"][:count], strict=True))
    names = {**train_of, **{name: name for name in train_of.values()}}
    queries = (replace(q, conversation=names.get(q.id, "")) for q in dataset.queries)
    write_dataset(replace(dataset, queries=tuple(queries)), tmp_path / "turns")
    data = ("--data", tmp_path / "turns", "--store", job.states, "--json")
    result = json.loads(run_ok("compare", job.router, job.router, *data))
    assert result["queries"] == len(parts["test"]) - count
    arguments = (*data, "--part", "unseen", "--out", tmp_path / "report")
    result = json.loads(run_ok("evaluate", job.router, *arguments))
    assert result["queries"] == len(parts["test"]) - count
