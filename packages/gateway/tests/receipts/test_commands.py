"""explain, replay and export from the command line, on a gateway's receipts."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from packages.gateway.tests.receipts.example_receipts import (
    example_receipt,
    receipt_id,
    write_receipts,
)
from packages.router.tests.commands import SEALED_FIT, check_malformed, check_refused, run_ok
from prefill_router import Router, read_dataset
from prefill_router.data import RoutingDataset, prompt_key
from prefill_router.endpoints import Usage
from prefill_router.policy import OperatingPoints
from prefill_router.router import VersionRegistry
from prefill_router.targets import Pool, Target, write_pool
from prefill_router.testing import make_routing_dataset
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import (
    Feedback,
    Recorded,
    by_router,
    export,
    prompt_of,
    version_details,
)
from prefill_router_gateway.records import TargetAttempt

pytestmark = pytest.mark.slow

RECIPE = "features: {kind: complexity}\npredictor: {kind: logistic}\n"
PRICES = Pool(tuple(Target(name=f"target-{k}", input_price=1, output_price=2) for k in range(3)))


@pytest.fixture(scope="module")
def source_dataset() -> RoutingDataset:
    return make_routing_dataset(queries=90)


def build_receipts(
    source_dataset: RoutingDataset, *, by: Sequence[int] = (0, 1, 2)
) -> list[Receipt]:
    """A receipt for each prompt; the targets take turns."""
    names = source_dataset.pool.names
    receipts = []
    for number, query in enumerate(source_dataset.queries):
        target = names[by[number % len(by)]]
        choice = {
            "order": (target, *(name for name in names if name != target)),
            "policy_target": target,
            "correctness": {name: 0.5 + 0.1 * k for k, name in enumerate(names)},
            "estimated_cost": {name: 0.001 * 4**k for k, name in enumerate(names)},
        }
        receipts.append(example_receipt(number, choice=choice, prompt=query.prompt, cost=0.002))
    return receipts


def score_receipts(source_dataset: RoutingDataset, receipts: Sequence[Receipt]) -> list[Feedback]:
    columns = [source_dataset.pool.names.index(receipt.choice.target) for receipt in receipts]
    return [
        Feedback(id=receipt.choice.id, score=float(source_dataset.correct[row, column]), at=1)
        for row, (receipt, column) in enumerate(zip(receipts, columns, strict=True))
    ]


@pytest.fixture(scope="module")
def file(source_dataset: RoutingDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    receipts = build_receipts(source_dataset)
    folder = tmp_path_factory.mktemp("receipts")
    return write_receipts(
        folder / "receipts.sqlite", receipts, score_receipts(source_dataset, receipts)
    )


@pytest.fixture(scope="module")
def traffic(file: Path) -> Path:
    text = run_ok("export-receipts", file, "--out", file.parent / "traffic")
    assert "90 queries and 90 labels, of 90 receipts" in text
    return file.parent / "traffic"


@pytest.fixture(scope="module")
def router(traffic: Path) -> Path:
    """A router fitted on the traffic, without an encoder."""
    recipe, router = traffic.parent / "recipe.yaml", traffic.parent / "router"
    recipe.write_text(RECIPE)
    run_ok("fit", "--no-verdict", "--test=0.15", traffic, "--recipe", recipe, "--out", router)
    return router


def test_the_latest_is_explained(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run_ok("explain", "last", "--receipts", file)
    assert f"{receipt_id(89)}: chat for auto" in text
    assert "target-2 was chosen" in text
    assert "feedback of user" in text
    assert "0.250 s" in text
    monkeypatch.chdir(file.parent)  # the default place of a gateway's file
    assert run_ok("explain", "last") == text
    monkeypatch.setenv("PREFILL_ROUTER_RECEIPTS__URL", "sqlite:///absent.sqlite")
    check_refused("doesn't exist", "explain", "last")


@pytest.mark.parametrize("prompt", ["Why does it fail?", [{"role": "user", "text": "Why? é"}]])
def test_what_was_read_is_shown_where_it_is_kept(tmp_path: Path, prompt: Any) -> None:
    file = write_receipts(tmp_path / "a.sqlite", [example_receipt(1, prompt=prompt)])
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    assert f"the encoder read: {text}\n" in run_ok("explain", "last", "--receipts", file)
    bare = write_receipts(tmp_path / "b.sqlite", [example_receipt(1)])
    assert "the encoder read" not in run_ok("explain", "last", "--receipts", bare)


def test_who_was_left_alone_was_not_asked(tmp_path: Path) -> None:
    attempt = TargetAttempt(target="large", end="breaker_open", status=None, seconds=0.0)
    file = write_receipts(
        tmp_path / "a.sqlite", [example_receipt(1, outcome={"attempts": (attempt,)})]
    )
    text = run_ok("explain", "last", "--receipts", file)
    assert "large wasn't asked: its breaker was open" in text
    assert "asked large" not in text


def test_why_a_call_failed_is_explained(tmp_path: Path) -> None:
    why = "its endpoint at http://large/v1 can't be reached, since its host is unknown; check it"
    failure = TargetAttempt(target="large", end="connect", status=None, seconds=0.25, failure=why)
    file = write_receipts(
        tmp_path / "a.sqlite", [example_receipt(1, outcome={"attempts": (failure,)})]
    )
    text = run_ok("explain", "last", "--receipts", file)
    assert f"asked large: connect, 0.250 s\n  {why}\n" in text


def test_retries_that_end_alike_are_explained_once(tmp_path: Path) -> None:
    why = "its endpoint at http://large/v1 can't be reached, since its host is unknown; check it"
    failure = TargetAttempt(target="large", end="connect", status=None, seconds=0.25, failure=why)
    answer = TargetAttempt(target="large", end="answered", status=200, seconds=1.0)
    attempts = (failure, replace(failure, seconds=0.5), answer)
    file = write_receipts(
        tmp_path / "a.sqlite", [example_receipt(1, outcome={"attempts": attempts})]
    )
    text = run_ok("explain", "last", "--receipts", file)
    assert f"asked large 2 times: connect, 0.750 s\n  {why}\nasked large: answered" in text


def test_the_version_that_decided_is_explained_with_the_evidence_of_its_step(
    tmp_path: Path, router: Path
) -> None:
    versions = tmp_path / "versions"
    registry = VersionRegistry.at(versions)
    registry.add(Router.load(router), {})
    evidence = {"why": "it is surely better", "requests": 4250, "e_values": {"better": 130.0}}
    registry.promote("0001", evidence=evidence)
    (before, at) = (1_700_000_000.0, time.time() + 60)
    details = version_details("0001", None, "promoted")
    receipts = [example_receipt(n, at=when, details=details) for n, when in enumerate((before, at))]
    file = write_receipts(tmp_path / "versioned.sqlite", receipts)
    text = run_ok("explain", "last", "--receipts", file, "--versions", versions)
    assert "decided by version 0001\npromoted\n" in text
    step = "the learner promoted version 0001: it is surely better\n"
    assert f"{step}    requests: 4,250\n    e values, better: 130\n" in text
    first = receipts[0].choice.id
    value = json.loads(
        run_ok("explain", first, "--receipts", file, "--versions", versions, "--json")
    )
    assert value["step"] is None  # the request was decided before that step


def test_one_is_explained_as_json(file: Path) -> None:
    value = json.loads(run_ok("explain", receipt_id(4), "--receipts", file, "--json"))
    assert value["choice"]["id"] == receipt_id(4)
    assert value["policy_alone"]["target"] in value["choice"]["order"]
    assert value["outcome"]["attempts"][0]["end"] == "answered"
    assert "of difficulty" not in json.dumps(value)


def test_what_isnt_there_is_refused(file: Path, tmp_path: Path) -> None:
    check_refused("there is no receipt 'pr_9'", "explain", "pr_9", "--receipts", file)
    check_refused("there is no receipt '.udcff'", "explain", "\udcff", "--receipts", file)
    check_refused(
        "there are no receipts yet",
        "explain",
        "last",
        "--receipts",
        write_receipts(tmp_path / "a", []),
    )
    check_refused("URL must begin", "explain", "last", "--receipts", "mysql://x")
    check_malformed("isn.t a time", "replay", file, "--since", "yesterday")
    check_refused("no request can be decided again", "replay", file, "--since", "1m")
    check_malformed("lam is 2", "replay", file, "--lam", "2")


def test_lams_are_replayed(file: Path, tmp_path: Path) -> None:
    text = run_ok("replay", file, "--lam", "0", "--lam", "1", "--out", tmp_path / "pictures")
    assert "90 requests decided again" in text
    assert "60 (66.7 %)" in text
    value = json.loads(run_ok("replay", file, "--lam", "0", "--json"))
    lowest = value["settings"][-1]
    assert (lowest["changed"], lowest["observed"]) == (60, 30)
    assert lowest["accuracy"] == pytest.approx(0.5)
    assert lowest["estimated_cost"] == pytest.approx(0.09)
    assert lowest["observed_cost"] == pytest.approx(0.06)
    rows = pl.read_csv(tmp_path / "pictures" / "replay.csv")
    assert set(rows["kind"]) == {"curve", "target", "setting"}
    target_row = rows.filter(pl.col("name") == "target-2")
    assert target_row["usd_per_1000"].item() == pytest.approx(16)
    assert (tmp_path / "pictures" / "replay.png").read_bytes().startswith(b"\x89PNG")


def test_other_prices_are_replayed(file: Path, tmp_path: Path) -> None:
    write_pool(PRICES, tmp_path / "pool.yaml")
    value = json.loads(run_ok("replay", file, "--pool", tmp_path / "pool.yaml", "--json"))
    # All targets now cost the same; each writes 20 tokens and reads the estimated input.
    tokens = sum(100 + n for n in range(90)) + 90 * 2 * 20
    assert value["settings"][0]["estimated_cost"] == pytest.approx(tokens / 1e6)
    assert "scale of costs" in value["notes"][0]


def test_another_router_is_replayed(
    file: Path, router: Path, source_dataset: RoutingDataset
) -> None:
    value = json.loads(run_ok("replay", file, "--router", router, "--lam", "1", "--json"))
    predicted = Router.load(router).predict(source_dataset)
    best = predicted.correctness.argmax(axis=1)
    recorded = np.arange(90) % 3
    assert value["settings"][-1]["changed"] == int((best != recorded).sum())
    assert value["settings"][-1]["accuracy"] == pytest.approx(
        predicted.correctness.max(axis=1).mean()
    )
    assert value["notes"] == []


def test_another_router_decides_at_its_own_setting(
    file: Path, router: Path, tmp_path: Path
) -> None:
    other = Router.load(router)
    points = OperatingPoints(0.9, None, 0.875, other.pool.names[-1])
    record = other.record.model_copy(update={"chosen": points})
    other.with_record(record).save(tmp_path / "other")
    value = json.loads(run_ok("replay", file, "--router", tmp_path / "other", "--json"))
    assert [setting["name"] for setting in value["settings"]][-1] == "lam = 0.875"
    assert "lam = 0.25" not in {setting["name"] for setting in value["settings"]}


def test_another_router_needs_prompts(router: Path, source_dataset: RoutingDataset) -> None:
    receipts = build_receipts(source_dataset)
    mixed = [
        r if n % 3 else example_receipt(n, choice=vars(r.choice)) for n, r in enumerate(receipts)
    ]
    replayed, missing = by_router(Recorded.of(mixed), mixed, Router.load(router))
    assert (len(replayed), missing) == (60, 30)


def test_another_router_without_any_prompt(tmp_path: Path, router: Path) -> None:
    bare = write_receipts(tmp_path / "bare.sqlite", [example_receipt(1)])
    check_refused("no receipt has its prompt", "replay", bare, "--router", router)


def test_traffic_becomes_a_dataset_that_can_be_fitted(
    traffic: Path, router: Path, source_dataset: RoutingDataset
) -> None:
    dataset = read_dataset(traffic)
    assert dataset.pool.names == source_dataset.pool.names
    for row, query in enumerate(source_dataset.queries):
        at = dataset.rows([prompt_key(query.prompt)])[0]
        labels = np.full(3, np.nan)
        labels[row % 3] = source_dataset.correct[row, row % 3]
        np.testing.assert_array_equal(dataset.correct[at], labels)
        assert np.nanmax(dataset.recorded_cost[at]) == pytest.approx(0.002)
        assert np.nanmax(dataset.input_tokens[at]) == 100 + row
    text = run_ok("describe", traffic)
    assert "90 queries" in text
    assert "no query has the labels of two targets: oracle and consensus are unknown" in text
    assert "disagreement" not in text
    assert Router.load(router).pool.names == source_dataset.pool.names


def test_a_target_that_nobody_scored(source_dataset: RoutingDataset, tmp_path: Path) -> None:
    receipts = build_receipts(source_dataset, by=(0, 1))
    file = write_receipts(
        tmp_path / "receipts.sqlite", receipts, score_receipts(source_dataset, receipts)
    )
    write_pool(PRICES, tmp_path / "pool.yaml")
    options = ("--out", tmp_path / "traffic", "--pool", tmp_path / "pool.yaml")
    value = json.loads(run_ok("export-receipts", file, *options, "--json"))
    assert value["labels"] == 90
    assert "no answer of target-2 was scored" in value["notes"][0]
    assert "the lengths of answers of target-2 are unknown" in value["notes"][1]
    assert "--assume-output-tokens" in value["notes"][1]
    value = json.loads(run_ok("export-receipts", file, "--out", tmp_path / "unpriced", "--json"))
    assert "the costs of target-2 are unknown; give a pool with prices" in value["notes"]
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    fit = (*SEALED_FIT, tmp_path / "traffic", "--recipe", tmp_path / "recipe.yaml")
    # The cost of target-2 needs its price, which is known, and its length, which is assumed.
    run_ok(*fit, "--out", tmp_path / "router", "--assume-output-tokens", "20")


def test_answers_to_the_same_prompt_are_one_query() -> None:
    chat = [{"role": "user", "content": "hello"}]
    estimated = {"usage_is_estimated": True}
    receipts = [
        example_receipt(0, prompt=chat),
        example_receipt(2, prompt=chat),
        example_receipt(1, prompt=chat, outcome=estimated, cost_is_estimated=True),
        example_receipt(3, prompt="hello"),
        example_receipt(4),
        example_receipt(5, prompt="x"),
        example_receipt(6, prompt="x", outcome={"kind": "cut"}),
    ]
    feedback = {
        receipt_id(n): [Feedback(id=receipt_id(n), score=score, at=1)]
        for n, score in ((0, 1), (2, 0.5), (1, 0.25), (3, 1), (4, 1), (6, 1))
    }
    feedback[receipt_id(2)].append(Feedback(id=receipt_id(2), score=0, at=1, source="judge"))
    table = export((receipt, feedback.get(receipt.choice.id, ())) for receipt in receipts)
    assert table.receipts == 4
    assert table.left_out == {"without a prompt": 1, "without feedback": 1, "not answered": 1}
    dataset = table.dataset
    assert dataset.pool.names == ("large", "middle", "small")
    hello = dataset.rows([prompt_key(prompt_of(chat))])[0]
    np.testing.assert_array_equal(dataset.correct[hello], [0.25, np.nan, (1 + 0.25) / 2])
    np.testing.assert_array_equal(dataset.input_tokens[hello], [np.nan, np.nan, 101])
    np.testing.assert_allclose(dataset.recorded_cost[hello], [np.nan, np.nan, 0.0002])


def test_what_others_sent_spoils_no_export(tmp_path: Path) -> None:
    usage = Usage(input_tokens=-5, output_tokens=2**63, reported={"prompt_tokens": -5})
    receipts = [
        example_receipt(0, prompt="hello", outcome={"usage": usage}),
        example_receipt(1, prompt="half a character: \ud83d"),
    ]
    scores = [Feedback(id=receipt_id(n), score=1, at=1) for n in range(2)]
    file = write_receipts(tmp_path / "a.sqlite", receipts, scores)
    text = run_ok("export-receipts", file, "--out", tmp_path / "traffic")
    assert "1 queries and 1 labels" in text
    assert "left out: 1 with a prompt that can't be written to a file" in text
    tokens = read_dataset(tmp_path / "traffic").input_tokens
    assert np.isnan(tokens).all()


def test_nothing_usable_is_refused_with_the_reason(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "traffic")
    bare = write_receipts(tmp_path / "a.sqlite", [example_receipt(1)])
    check_refused("to keep prompts, set in", "export-receipts", bare, *out)
    unscored = write_receipts(tmp_path / "b.sqlite", [example_receipt(1, prompt="of difficulty")])
    check_refused(
        "send scores of answers to the gateway's /v1/feedback", "export-receipts", unscored, *out
    )
    check_refused(
        "there are no receipts in that time", "export-receipts", unscored, *out, "--since", "1m"
    )
    write_pool(PRICES, tmp_path / "pool.yaml")
    score = Feedback(id=receipt_id(1), score=1, at=1)
    other = write_receipts(
        tmp_path / "c.sqlite", [example_receipt(1, prompt="of difficulty")], [score]
    )
    check_refused(
        "a target that isn't in the pool",
        "export-receipts",
        other,
        *out,
        "--pool",
        tmp_path / "pool.yaml",
    )
    assert not (tmp_path / "traffic").exists()
