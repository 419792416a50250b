"""`quickstart`: from what a user has to a router, or to what is missing for one."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.receipts.example_receipts import example_receipt, write_receipts
from packages.router.tests.cli.test_votes_command import write_votes
from packages.router.tests.commands import CommandResult, check_malformed, check_refused, run
from packages.router.tests.importers.call_log_samples import litellm_rows
from packages.router.tests.importers.layout_samples import vote_rows, write_lm_eval
from packages.router.tests.importers.truth import write_csv, write_jsonl
from packages.router.tests.test_quickstart import rows
from prefill_router.cli.judged_queries import JudgedQueries
from prefill_router.evaluation import Evaluation
from prefill_router.router import Router
from prefill_router.targets import read_pool
from prefill_router_gateway.settings import read_settings

pytestmark = pytest.mark.slow


def commands_run(result: CommandResult) -> list[str]:
    begin = "$ prefill-router "
    return [
        line.removeprefix(begin).split()[0] for line in result.err.splitlines() if begin in line
    ]


@pytest.fixture(scope="module")
def quickstart_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommandResult]:
    folder = tmp_path_factory.mktemp("quickstart")
    table = write_csv(folder / "answers.csv", rows(80))
    line = ("quickstart", table, "--out", folder / "out", "--encoder", "minipool", "--json")
    return folder, run(*line)


def test_a_table_becomes_a_router_with_its_pool_and_page(
    quickstart_run: tuple[Path, CommandResult],
) -> None:
    folder, result = quickstart_run
    assert result.code == 0, result.err
    assert commands_run(result) == ["import", "describe", "encode", "fit"]
    assert "scale: 1 is the worst, 5 the best" in result.err
    output = json.loads(result.out)
    assert output["fitted"]
    assert 0 <= output["lam"] <= 1
    assert output["verdict"] in ("worth it", "can't tell", "not worth it")
    assert Router.load(folder / "out" / "router").pool.names == ("gpt-4o-mini", "mine")
    pool = read_pool(folder / "out" / "pool.yaml")
    assert [target.provider for target in pool] == ["openai", "yours"]
    page = unescape((folder / "out" / "index.html").read_text())
    for words in (output["verdict"], "How the source was read", "Accuracy and cost", "lam "):
        assert words in page


def test_a_router_that_isnt_worth_it_isnt_served(
    quickstart_run: tuple[Path, CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, result = quickstart_run
    assert [line.split()[1] for line in json.loads(result.out)["next"]] == ["route", "serve"]
    evaluate = JudgedQueries.evaluate

    def find_no_worth(queries: JudgedQueries, *arguments: Any) -> Evaluation:
        evaluation = evaluate(queries, *arguments)
        assert evaluation.verdict is not None
        return replace(evaluation, verdict=replace(evaluation.verdict, word="not worth it"))

    monkeypatch.setattr(JudgedQueries, "evaluate", find_no_worth)
    out = ("--out", folder / "out", "--encoder", "minipool")
    again = run("quickstart", folder / "answers.csv", *out)
    assert again.code == 0, again.err
    assert "don't route with it: send all requests to " in again.out
    assert "prefill-router doctor " in again.out[again.out.index("next:") :]
    assert "prefill-router serve " not in again.out


def test_again_it_goes_on_and_keeps_the_pool_file(
    quickstart_run: tuple[Path, CommandResult],
) -> None:
    folder, _ = quickstart_run
    pool = folder / "out" / "pool.yaml"
    edited = pool.read_text().replace("127.0.0.1:8000", "127.0.0.1:9")
    priced = "- name: mine\n  input_price: 1\n  output_price: 2\n"
    pool.write_text(edited.replace("- name: mine\n", priced))
    out = ("--out", folder / "out", "--encoder", "minipool")
    again = run("quickstart", folder / "answers.csv", *out)
    assert again.code == 0, again.err
    assert commands_run(again) == ["import", "describe", "encode", "fit"], "the prices are others"
    assert "127.0.0.1:9" in pool.read_text()
    assert "$1 / $2" in again.out
    prices = folder / "prices.csv"
    prices.write_text(
        "target,usd_per_million_input_tokens,usd_per_million_output_tokens\nmine,3,4\nother,5,6\n"
    )
    repriced = run("quickstart", folder / "answers.csv", *out, "--prices", prices)
    assert repriced.code == 0, repriced.err
    assert f"those of {prices} are now in {pool}" in repriced.err
    assert "127.0.0.1:9" in pool.read_text()
    assert Router.load(folder / "out" / "router").pool["mine"].output_price == 4
    last = run("quickstart", folder / "answers.csv", *out, "--prices", prices)
    assert commands_run(last) == ["import", "describe", "encode"]


def test_answers_without_costs_say_what_to_add(tmp_path: Path) -> None:
    table = [{k: v for k, v in row.items() if "cost" not in k} for row in rows(80)]
    source = write_csv(tmp_path / "answers.csv", table)
    done = run("quickstart", source, "--out", tmp_path / "out", "--encoder", "minipool")
    assert done.code == 0, done.err
    assert "no cost is known, so nothing can be saved yet: add a column 'cost'" in done.out


def write_unlabelled(folder: Path) -> Path:
    return write_jsonl(folder / "spend.jsonl", litellm_rows())


def test_a_log_without_labels_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("quickstart", write_unlabelled(tmp_path), "--out", out)
    assert result.code == 0, result.err
    assert "no router can be fitted yet: no answer has a label" in result.out
    assert "asking 2 targets 5 of the questions" in result.out
    assert "about $0.169 for the answers" in result.out
    next_steps = result.out[result.out.index("next:") :]
    assert [line.split()[1] for line in next_steps.splitlines()[1:-1]] == [
        *("prices", "collect", "grade", "quickstart", "serve", "learn")
    ]
    kept = read_settings(out / "gateway.yaml").learning
    assert (kept.share, kept.keep_texts) == (0.05, True)
    assert "LiteLLM spend logs" in (out / "index.html").read_text()
    listed = run("tasks", out / "tasks.jsonl", "--out", tmp_path / "tasks.jsonl")
    assert listed.code == 0, listed.err


def test_receipts_without_feedback_are_read_and_want_feedback(tmp_path: Path) -> None:
    receipts = [example_receipt(number, prompt=f"question {number}") for number in range(4)]
    database = tmp_path / "receipts.sqlite"
    write_receipts(f"sqlite:///{database}", receipts)
    done = run("quickstart", database, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["fitted"], found["queries"]) == (False, 4)
    assert found["read_as"] == {"format": "receipts of the gateway"}


def write_scores(folder: Path, scores: Sequence[float], name: str = "score") -> Path:
    path = folder / "answers.csv"
    table: list[dict[str, Any]] = [
        {"prompt": f"question {n}?", "model": model, name: score}
        for n, score in enumerate(scores)
        for model in "ab"
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path


def test_programs_take_the_guess_unless_it_is_reckless(tmp_path: Path) -> None:
    line = ("quickstart", write_scores(tmp_path, [2, 3, 4]), "--out", tmp_path / "out")
    check_malformed("pass --yes", *line)
    result = run(*line, "--yes")
    assert (result.code, "1 is the worst, 5 the best" in result.err) == (0, True)
    line = ("quickstart", write_scores(tmp_path, [1, 2, 3], "rank"), "--out", tmp_path / "other")
    check_malformed("--scale WORST-BEST", *line, "--yes")
    assert run(*line, "--scale", "3-1").code == 0


def test_people_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill_router.cli.quickstart._can_ask", lambda: True)
    line = ("quickstart", write_scores(tmp_path, [2, 3, 4]), "--out", tmp_path / "out")
    done = run(*line, stdin=b"1-10\n")
    assert (done.code, "1 is the worst, 10 the best" in done.err) == (0, True)
    assert "which are the worst and the best score" in done.err


def test_all_doubts_are_told_at_once_with_the_command_that_settles_them(tmp_path: Path) -> None:
    table = [
        {"query": f"question {n}?", "text": "a", "model": model, "rank": 1 + n % 3}
        for n in range(6)
        for model in "ab"
    ]
    source = write_csv(tmp_path / "answers.csv", table)
    message = check_malformed("doesn't tell", "quickstart", source, "--out", tmp_path / "out")
    assert "Which column has the prompt? (query, text)" in message
    assert "which are the worst and the best score" in message
    assert f"Give prefill-router quickstart {source} --prompt-column query --scale" in message


def test_answers_of_one_model_and_few_votes_say_what_is_missing(tmp_path: Path) -> None:
    (source,) = write_lm_eval(tmp_path)
    line = ("quickstart", source / "beta", "--out", tmp_path / "out")
    assert "all of one target, 'beta'" in check_refused("a folder per model", *line)
    votes = write_jsonl(tmp_path / "votes.jsonl", vote_rows())
    result = run("quickstart", votes, "--out", tmp_path / "votes")
    assert result.code == 0, result.err
    assert "no router can be fitted yet: fewer than two targets have 20 labels" in result.out
    assert "accuracy" not in result.out


def test_votes_become_a_router_with_a_verdict_in_win_rate(tmp_path: Path) -> None:
    table = write_votes(tmp_path / "votes.csv", 90)
    out = tmp_path / "out"
    result = run("quickstart", table, "--out", out, "--encoder", "minipool")
    assert result.code == 0, result.err
    assert commands_run(result) == ["import", "describe", "encode", "fit"]
    assert "its pick won" in result.out
    assert "it is used at lam 1: the most probable winner" in " ".join(result.out.split())
    assert "accuracy" not in result.out
    assert "accuracy" not in (out / "index.html").read_text()
    assert Router.load(out / "router").is_voted
    assert json.loads((out / "quickstart.json").read_text())["verdict"] is not None
