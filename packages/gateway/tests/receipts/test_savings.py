"""Savings come with their own cost, with intervals, and with the quality."""

import json
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from packages.gateway.tests.receipts.example_receipts import (
    COSTS,
    START,
    TARGETS,
    example_receipt,
    receipt_id,
    write_receipts,
)
from packages.gateway.tests.telemetry.receipts import render_text
from packages.router.tests.commands import check_refused, run_ok
from prefill_router.endpoints import Usage
from prefill_router.errors import DataError
from prefill_router_gateway import Receipt
from prefill_router_gateway.page import views
from prefill_router_gateway.receipts import (
    AnswerLabel,
    Feedback,
    Savings,
    SideAnswer,
    explain,
    open_learning,
    request_saving,
    savings_since,
    summary,
    write_learning,
)
from prefill_router_gateway.records import APART, Reason
from prefill_router_gateway.settings import SavingsSettings
from prefill_router_gateway.telemetry import Metrics

NO_PRICES = SavingsSettings()


def build_receipts(
    count: int, *, together: int = 1, first: int = 0, **changes: Any
) -> list[Receipt]:
    """Receipts with random costs; `together` of them are a conversation with one random factor."""
    random = np.random.default_rng(0).lognormal(0, 1, count)
    return [
        example_receipt(
            n,
            choice={"session": f"{n // together:032x}", **changes.pop("choice", {})},
            **{"cost": (COSTS["large"] if n % 2 else COSTS["small"]) * random[i // together]},
            **changes,
        )
        for i, n in enumerate(range(first, first + count))
    ]


def find_savings(folder: Path, receipts: list[Receipt], target: str | None = None) -> Savings:
    return savings_since(
        str(write_receipts(folder / "receipts.sqlite", receipts)), NO_PRICES, against=target
    )


def test_the_baselines_cost_is_that_of_each_request_there(tmp_path: Path) -> None:
    receipts = build_receipts(60)
    savings = find_savings(tmp_path, receipts)
    assert (savings.requests, savings.chosen_by, savings.unpriced, savings.apart) == (
        60,
        "receipts",
        {},
        {},
    )
    assert savings.at_baseline == pytest.approx(sum(r.cost_at("large") or 0 for r in receipts))
    assert savings.spent == pytest.approx(sum(r.cost or 0.0 for r in receipts))
    assert savings.saved.value == pytest.approx(savings.at_baseline - savings.spent)
    assert savings.share.value == pytest.approx(1 - savings.spent / savings.at_baseline)
    assert savings.share.low is not None
    assert savings.share.high is not None
    assert savings.share.low < savings.share.value < savings.share.high


def test_quality_is_beside_savings(tmp_path: Path) -> None:
    savings = find_savings(tmp_path, build_receipts(60))
    assert (savings.expected, savings.expected_baseline) == pytest.approx((0.9, 0.925))
    assert savings.expected_gain.value == pytest.approx(-0.025)
    assert savings.expected_gain.high is not None
    assert savings.expected_gain.high < 0
    assert (savings.observed.value, savings.scored) == (None, 0)


@pytest.mark.slow
def test_requests_of_one_conversation_count_as_one_in_the_intervals(tmp_path: Path) -> None:
    ends = []
    for together in (1, 20):
        (tmp_path / str(together)).mkdir()
        saved = find_savings(tmp_path / str(together), build_receipts(600, together=together)).saved
        assert saved.value is not None
        assert saved.low is not None
        assert saved.high is not None
        ends.append((saved.high - saved.low) / saved.value)
    assert ends[1] > 1.3 * ends[0]


CACHE = {"small": [1.0, 1e-6, 300], "middle": [1.0, 0.0, 300], "large": [2.0, 3e-4, 300]}
"""For each target: tokens per encoder token, US dollars per cached token, seconds."""


@pytest.mark.parametrize(
    ("cached", "cache", "factor"),
    [
        (
            10,
            CACHE,
            (0.01 - 20 * 3e-4) / (0.0001 - 10 * 1e-6),
        ),  # the large target has half as many tokens
        (
            10,
            {**CACHE, "large": [2.0, 0.0, 300]},
            0.01 / (0.0001 - 10 * 1e-6),
        ),  # no price of cached tokens
        (10, {"small": CACHE["small"]}, 100),  # no data of the large target
        (200, CACHE, 100),  # more than the estimated input
        (None, CACHE, 100),
    ],
)
def test_what_was_cached_is_cached_at_the_baseline_and_costs_what_it_does_there(
    tmp_path: Path, cached: int | None, cache: dict[str, Any], factor: float
) -> None:
    usage = Usage(input_tokens=300, cached_tokens=cached, output_tokens=20)
    more = {"outcome": {"usage": usage}, "details": {"cache": cache}}
    receipts = [example_receipt(n, **more) for n in range(0, 20, 2)]
    savings = find_savings(tmp_path, receipts)
    assert savings.at_baseline == pytest.approx(factor * savings.spent)
    assert sum(r.cost_at("large") or 0 for r in receipts) == pytest.approx(savings.at_baseline)
    url = str(tmp_path / "receipts.sqlite")
    with closing(open_learning(url)) as store:
        side = SideAnswer(id=receipt_id(0), target="large", at=START, propensity=1, cost=1.0)
        write_learning(store, [side])
    reference_cost = receipts[0].cost_at("large")
    assert reference_cost is not None
    assert savings_since(url, NO_PRICES).also_ratio == pytest.approx(1 / reference_cost)


def test_few_conversations_give_no_intervals(tmp_path: Path) -> None:
    savings = find_savings(tmp_path, build_receipts(90, together=10))
    assert savings.saved.value is not None
    assert (savings.saved.low, savings.saved.high, savings.groups) == (None, None, 9)
    assert any("no intervals" in note for note in savings.notes())


REASONS: list[Reason] = [reason for reason in get_args(Reason) if reason in APART]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        *(({"choice": {"reason": reason}}, reason) for reason in REASONS),
        ({"choice": {"tool_loop": True, "reason": "session"}}, "tool_loop"),
        ({"choice": {"fallback": "deadline"}}, "fallback"),
        ({"outcome": {"kind": "failed", "target": None}, "cost": None}, "unanswered"),
        ({"outcome": {"kind": "routed", "target": None}, "cost": None}, "dry_run"),
    ],
)
def test_what_the_router_did_not_decide_is_counted_apart(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    other = example_receipt(500, **{"cost": 0.5, **changes})
    savings = find_savings(tmp_path, [*build_receipts(30), other])
    assert other.apart == why
    assert other.cost_at("large") is None
    assert savings.requests == 30
    assert savings.apart == {why: (1, other.cost or 0.0)}
    assert any(APART[why] in note for note in savings.notes())


def test_a_request_without_a_price_is_listed_and_never_free(tmp_path: Path) -> None:
    first_savings = find_savings(tmp_path, build_receipts(30))
    more = [
        *(example_receipt(n, cost=None) for n in (500, 502)),
        example_receipt(504, choice={"estimated_cost": {"small": 0.1}}),
        example_receipt(506, choice={"estimated_cost": {"large": 0.1}}),
    ]
    savings = find_savings(tmp_path, more)
    assert (savings.requests, savings.spent) == (first_savings.requests, first_savings.spent)
    assert savings.at_baseline == first_savings.at_baseline
    assert savings.unpriced == {"small": 3, "large": 1}
    assert [receipt.cost_at("large") for receipt in more] == [None] * 4


def test_encoder_judges_and_side_answers_are_deducted(tmp_path: Path) -> None:
    url = str(write_receipts(tmp_path / "receipts.sqlite", build_receipts(40)))
    before = savings_since(url, NO_PRICES)
    assert [(cost.kind, cost.dollars) for cost in before.deducted] == [("encoder", None)]
    assert any("isn't counted" in note for note in before.notes())
    with closing(open_learning(url)) as store:
        fields = {"id": receipt_id(0), "at": START}
        label = {**fields, "target": "small", "score": 1.0}
        side = {**fields, "propensity": 0.5}
        write_learning(
            store,
            [
                AnswerLabel(**label, source="judge:one", cost=0.001),
                AnswerLabel(**label, source="user", cost=7.0),
                SideAnswer(**side, target="large", cost=0.01),
                SideAnswer(**side, target="middle"),
            ],
        )
    settings = NO_PRICES.model_copy(
        update={"encoder_second_dollars": 0.5, "encoder_thousand_dollars": 2.0}
    )
    savings = savings_since(url, settings)
    encoder = 40 * 0.001 * 0.5 + 40 * 2.0 / 1000
    assert {cost.kind: cost.dollars for cost in savings.deducted} == pytest.approx(
        {"encoder": encoder, "judges": 0.001, "side answers": 0.01}
    )
    assert [cost.unknown for cost in savings.deducted] == [0, 0, 1]
    assert savings.saved == before.saved
    assert savings.saved.value is not None
    assert savings.net.value == pytest.approx(savings.saved.value - encoder - 0.011)
    assert savings.also_asked == 1
    assert savings.also_ratio == pytest.approx(0.01 / (build_receipts(40)[0].cost_at("large") or 0))
    assert "0 of 1" not in " ".join(savings.notes())


def test_scores_are_the_latest_of_each_source_of_the_answer_that_was_given(tmp_path: Path) -> None:
    feedback = [
        Feedback(id=receipt_id(n), score=score, at=START + at)
        for n in range(40)
        for at, score in ((0, 0.0), (1, 1.0 if n % 4 else 0.0))
    ]
    url = str(write_receipts(tmp_path / "receipts.sqlite", build_receipts(60), feedback))
    savings = savings_since(url, NO_PRICES)
    assert (savings.scored, savings.observed.value) == (40, 0.75)
    with closing(open_learning(url)) as store:
        write_learning(
            store,
            [
                AnswerLabel(id=receipt_id(0), target=t, source="judge:j", at=START, score=1.0)
                for t in ("large", "small")  # the small target answered
            ],
        )
    savings = savings_since(url, NO_PRICES)
    assert (savings.scored, savings.observed.value) == (40, pytest.approx((30 + 0.5) / 40))


def test_each_request_is_compared_with_the_baseline_of_its_receipt(tmp_path: Path) -> None:
    receipts = [
        *build_receipts(20, baseline="middle"),
        *build_receipts(30, first=100),
        *build_receipts(5, first=200, baseline=None),
    ]
    savings = find_savings(tmp_path, receipts)
    assert savings.baselines == {"large": 30, "middle": 20}
    assert (savings.baseline, savings.chosen_by, savings.unnamed) == (
        "large and middle",
        "receipts",
        5,
    )
    assert savings.at_baseline == pytest.approx(sum(r.cost_at(r.baseline) or 0 for r in receipts))
    assert any("no baseline in the receipt: 5 requests" in note for note in savings.notes())


def test_a_named_target_is_compared_with_all(tmp_path: Path) -> None:
    url = str(
        write_receipts(
            tmp_path / "receipts.sqlite", [*build_receipts(30), example_receipt(99, baseline=None)]
        )
    )
    savings = savings_since(url, NO_PRICES, against="small")
    assert (savings.baselines, savings.chosen_by) == ({"small": 31}, "named")
    assert savings.at_baseline < savings.spent
    with pytest.raises(DataError, match="of these receipts: large, middle, small"):
        savings_since(url, NO_PRICES, against="giant")
    with pytest.raises(DataError, match="names a baseline"):
        savings_since(url, NO_PRICES, since=START + 1e6)
    assert savings_since(url, NO_PRICES, since=START + 1e6, against="large").requests == 0


def test_a_conversation_that_another_target_continued_counts_once(tmp_path: Path) -> None:
    def build_session(session: str, first: int, *opening: bool) -> list[Receipt]:
        choices = [{"session": session, "opening": alone} for alone in opening]
        # even numbers are answered by the small target
        return [example_receipt(first + 2 * i, choice=choice) for i, choice in enumerate(choices)]

    receipts = [
        *build_session("a", 0, True, False, False),  # three turns of one conversation
        *build_session("b", 100, True, True, True),  # the same question three times, each alone
        *build_session("c", 200, False),  # one request of a session that the client named
        example_receipt(301, choice={"session": "d"}),
        example_receipt(303, choice={"session": "d"}),  # continued by the baseline
        example_receipt(400, choice={"session": None}),
        example_receipt(500, choice={"session": "e", "reason": "named"}),
        example_receipt(502, choice={"session": "e"}),  # begun by a named target
    ]
    savings = find_savings(tmp_path, receipts)
    assert (savings.requests, savings.switched) == (11, 1)
    assert find_savings(tmp_path, [], target="small").switched == 1


def test_a_name_that_is_not_ascii_is_found(tmp_path: Path) -> None:
    names = {"choice": {"estimated_cost": {"small": 0.1, "grö.ß$": 0.3}, "session": None}}
    receipts = [example_receipt(n, **names) for n in range(0, 20, 2)]
    savings = find_savings(tmp_path, receipts, "grö.ß$")
    assert savings.at_baseline == pytest.approx(3 * savings.spent)


def test_one_requests_interval_is_the_spread_of_the_baselines_own_answers(tmp_path: Path) -> None:
    receipts = build_receipts(100)
    url = str(write_receipts(tmp_path / "receipts.sqlite", receipts[:30]))
    saving = request_saving(url, receipts[0])
    assert saving is not None
    assert (saving.low, saving.high) == (None, None)
    assert "interval unknown" in saving.sentence()
    write_receipts(tmp_path / "receipts.sqlite", receipts)
    saving = request_saving(url, receipts[0])
    assert saving is not None
    costs = np.array([r.cost for r in receipts if r.outcome.target == "large"])
    low, high = np.quantile(costs / costs.mean(), [0.025, 0.975])
    assert saving.cost == receipts[0].cost_at("large")
    assert (saving.low, saving.high) == pytest.approx((saving.cost * low, saving.cost * high))
    assert "it would have cost" in explain(receipts[0], instead=saving).sentences()[-1]
    same = request_saving(url, receipts[1])
    assert same is not None
    assert (same.saved, same.low) == (0, same.cost)
    assert request_saving(url, example_receipt(0, cost=None)) is None


@pytest.mark.slow
def test_postgresql_gives_the_same(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    running = request.getfixturevalue("postgres")
    running.clear()
    label = AnswerLabel(
        id=receipt_id(0), target="small", source="judge:j", at=START, score=0.5, cost=0.1
    )
    side = SideAnswer(id=receipt_id(2), target="large", at=START, propensity=1, cost=0.1)
    values_by_url = []
    for url in (f"sqlite:///{tmp_path}/r.sqlite", running.url):
        with closing(open_learning(url)) as store:
            write_learning(store, [label, side])
        feedback = [Feedback(id=receipt_id(n), score=n % 2, at=START) for n in range(5)]
        receipts = [*build_receipts(40, details={"cache": CACHE}), example_receipt(99, cost=None)]
        write_receipts(url, receipts, feedback)  # type: ignore[arg-type]
        values = json.dumps(savings_since(url, NO_PRICES).to_dict())
        values_by_url.append(json.loads(values, parse_float=lambda text: round(float(text), 9)))
        assert request_saving(url, build_receipts(40)[0])
    assert values_by_url[0] == values_by_url[1]


def test_the_command(tmp_path: Path) -> None:
    file = write_receipts(tmp_path / "receipts.sqlite", build_receipts(60))
    text = run_ok("savings", file, "--baseline", "large", "--encoder-thousand-dollars", 1)
    for part in ("60 routed requests, against large alone", "saved after that", "expected acc"):
        assert part in text
    values = json.loads(run_ok("savings", file, "--json"))
    assert (values["baseline"], values["chosen_by"]) == ("large", "receipts")
    assert values["deducted"][0]["dollars"] is None
    check_refused("must be a target of these receipts", "savings", file, "--baseline", "giant")
    assert "at the baseline small" in run_ok(
        "explain", "last", "--receipts", file, "--baseline", "small"
    )


def test_the_command_the_page_and_the_metrics_give_one_figure(tmp_path: Path) -> None:
    """The receipts have two baselines."""
    named_receipt = example_receipt(502, choice={"reason": "named"})
    receipts = [
        *build_receipts(40),
        *build_receipts(21, first=100, baseline="middle"),
        named_receipt,
    ]
    file = write_receipts(tmp_path / "receipts.sqlite", receipts)
    command = json.loads(run_ok("savings", file, "--json"))
    savings = savings_since(str(file), NO_PRICES)
    spend = views.spend(summary(str(file), START), savings, START)
    card = views.savings(savings)

    metrics = Metrics(TARGETS)
    for receipt in receipts:
        metrics.observe(receipt)
    totals: dict[str, float] = defaultdict(float)
    for line in render_text(metrics).splitlines():
        if line.startswith("prefill_router_savings_"):
            name, _, value = line.partition(" ")
            totals[name.removeprefix("prefill_router_savings_").partition("{")[0]] += float(value)

    spent = [command["spent"], spend["compared_cost"], card["spent"]]
    reference_cost = [command["at_baseline"], spend["at_baseline"], card["at_baseline"]]
    assert spent == pytest.approx([totals["spent_dollars_total"]] * 3)
    assert reference_cost == pytest.approx([totals["baseline_dollars_total"]] * 3)
    names = {command["baseline"], spend["baseline"], card["baseline"]}
    assert names == {"large and middle"}
    assert {command["requests"], spend["compared"], card["requests"]} == {61}
    assert command["saved"]["value"] == pytest.approx(reference_cost[0] - spent[0])
