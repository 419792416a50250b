"""Side questions and judgments: recorded before they are sent, within the budget, once each."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.learning.traffic import START, answer, build_pools, write_traffic
from packages.router.tests.fakes.answering_server import serve_answers
from prefill_router.progress import SilentProgress
from prefill_router.targets import Target
from prefill_router_gateway.learning import (
    AnswerJudges,
    BudgetLimits,
    Labelling,
    LabellingRound,
    LabellingSettings,
    LearningBudget,
    Verifiers,
)
from prefill_router_gateway.learning.judging import ASSUMED_ERROR, Form, family
from prefill_router_gateway.learning.side_plan import chance
from prefill_router_gateway.receipts import (
    AnswerLabel,
    SideAnswer,
    SideQuestions,
    open_learning,
    purge,
    read_costs,
    read_learning,
)

pytestmark = pytest.mark.slow


def label_traffic(
    url: str,
    base_url: str,
    *,
    dollars: float = 1.0,
    form: Form = "rubric",
    settings: LabellingSettings | None = None,
    judges: tuple[str, ...] = ("judge-1",),
    **verifiers: Any,
) -> LabellingRound:
    pool, judge_pool = build_pools(base_url, judges=judges)
    with closing(open_learning(url)) as store:
        labelling = Labelling(
            url,
            store,
            pool,
            AnswerJudges(judge_pool, form=form),
            verifiers=Verifiers(**verifiers),
            budget=LearningBudget(store, BudgetLimits(per_day=dollars, in_all=dollars)),
            settings=settings,
        )
        return labelling.run_round(share=1.0, progress=SilentProgress())


def read_spending(url: str) -> float:
    with closing(open_learning(url)) as store:
        return LearningBudget(store, BudgetLimits(per_day=1.0)).spending()


def test_chances_are_recorded_as_they_were_drawn_and_what_was_drawn_was_asked(
    tmp_path: Path,
) -> None:
    url = write_traffic(tmp_path, 40)
    with serve_answers(answer) as (base_url, _):
        labelling_round = label_traffic(url, base_url, dollars=0.004)
    plans = list(read_learning(url, SideQuestions))
    assert len(plans) == labelling_round.requests == 40
    for plan in plans:
        assert set(plan.drawn) == {
            t for t, p in plan.propensity.items() if chance(0, plan.id, t) < p
        }
    for side in read_learning(url, SideAnswer):
        plan = next(plan for plan in plans if plan.id == side.id)
        assert side.propensity == plan.propensity[side.target]
        assert side.target in plan.drawn
    chances = [p for plan in plans for p in plan.propensity.values()]
    assert 0 < min(chances) < max(chances) <= 1


@pytest.mark.parametrize("dollars", [0.0, 0.0007, 0.002])
def test_the_budget_is_never_exceeded_over_many_rounds(tmp_path: Path, dollars: float) -> None:
    url = write_traffic(tmp_path, 30)
    with serve_answers(answer) as (base_url, _):
        for _ in range(3):
            label_traffic(url, base_url, dollars=dollars)
    assert read_spending(url) <= dollars
    charges = [label.cost for label in read_learning(url, AnswerLabel)]
    charges += [side.cost or 0.0 for side in read_learning(url, SideAnswer)]
    assert sum(charges) == pytest.approx(read_spending(url), abs=1e-9)


def test_requests_wait_for_dollars_where_none_are_left(tmp_path: Path) -> None:
    url = write_traffic(tmp_path, 5)
    with serve_answers(answer) as (base_url, _):
        assert label_traffic(url, base_url, dollars=0).requests == 0
        assert label_traffic(url, base_url).answers == {"answered": 5}


def test_what_is_judged_already_leaves_the_budget_to_new_requests(tmp_path: Path) -> None:
    url = write_traffic(tmp_path, 100)
    with serve_answers(answer) as (base_url, _):
        label_traffic(url, base_url)
        write_traffic(tmp_path, 110, first=100)
        labelling_round = label_traffic(url, base_url, dollars=read_spending(url) + 0.01)
    assert labelling_round.requests == 10
    assert labelling_round.answers == {"answered": 10}


def test_savings_deduct_all_that_was_spent_whatever_it_brought_and_was_purged(
    tmp_path: Path,
) -> None:
    url = write_traffic(tmp_path, 10)
    with serve_answers(lambda m, p: "hm" if m == "judge-1" else answer(m, p)) as (base_url, _):
        label_traffic(url, base_url)
    assert not list(read_learning(url, AnswerLabel))  # no verdict could be read
    costs = {cost.kind: cost.dollars for cost in read_costs(url)}
    assert min(costs["judges"] or 0, costs["side answers"] or 0) > 0
    purge(url, before=START + 1e6)
    assert {cost.kind: cost.dollars for cost in read_costs(url)} == costs
    assert sum(dollars or 0 for dollars in costs.values()) == pytest.approx(read_spending(url))


def test_a_killed_learner_pays_once_and_asks_nothing_again(tmp_path: Path) -> None:
    url, kills = write_traffic(tmp_path, 12), list[int]()
    call_counts: Counter[tuple[str, str]] = Counter()
    learner: list[subprocess.Popen[bytes]] = []

    def kill(model: str, prompt: str) -> str | None:
        call_counts[model, prompt] += 1
        if not kills and len(call_counts) == 4:
            kills.append(learner[0].pid)
            os.kill(learner[0].pid, signal.SIGKILL)
        return answer(model, prompt)

    with serve_answers(kill) as (base_url, _):
        module = "packages.gateway.tests.learning.test_labelling"
        code = f"from {module} import label_traffic; label_traffic({url!r}, {base_url!r})"
        learner.append(subprocess.Popen([sys.executable, "-c", code]))
        assert learner[0].wait() == -signal.SIGKILL
        label_traffic(url, base_url)
        label_traffic(url, base_url)
    side_calls = {call: n for call, n in call_counts.items() if call[0] != "judge-1"}
    assert set(side_calls.values()) == {1}
    interruptions = [
        answer for answer in read_learning(url, SideAnswer) if answer.failure == "interrupted"
    ]
    assert interruptions
    assert all((answer.cost or 0) > 0 for answer in interruptions)
    charges = [label.cost for label in read_learning(url, AnswerLabel)]
    charges += [side.cost or 0.0 for side in read_learning(url, SideAnswer)]
    assert sum(charges) == pytest.approx(read_spending(url), abs=1e-9)


def test_verifiers_refute_and_the_judge_does_the_rest(tmp_path: Path) -> None:
    url, function = write_traffic(tmp_path, 20), tmp_path / "mine.py"
    function.write_text("def grade(task, text):\n    return 1 / ('right' in text)\n")
    with serve_answers(answer) as (base_url, bodies):
        labelling_round = label_traffic(
            url,
            base_url,
            settings=LabellingSettings(again=0),
            function=f"{function}:grade",
        )
    labels = list(read_learning(url, AnswerLabel))
    verifications = [label for label in labels if label.source == "verifier:function"]
    assert len(verifications) == labelling_round.verified
    assert {(label.score, label.error, label.cost) for label in verifications} == {(1.0, 0.0, 0.0)}
    judgments = [label for label in labels if label.source == "judge:judge-1"]
    assert (
        len(judgments)
        == sum(body["model"] == "judge-1" for body in bodies)
        == 40 - len(verifications)
    )
    assert {label.error for label in judgments} == {
        ASSUMED_ERROR
    }  # no measured error of this judge


def test_pairs_are_judged_in_both_orders_and_label_the_clients_answer(tmp_path: Path) -> None:
    url = write_traffic(tmp_path, 20)
    with serve_answers(answer) as (base_url, bodies):
        label_traffic(url, base_url, form="pairs")
    labels = list(read_learning(url, AnswerLabel))
    assert Counter(label.source for label in labels) == {
        "judge:judge-1": 40,
        "judge:judge-1:reversed": 20,
    }
    assert sum(body["model"] == "judge-1" for body in bodies) == 40
    by_cell = {(label.id, label.target, label.source): label.score for label in labels}
    for (name, target, source), score in by_cell.items():
        if source.endswith("reversed"):
            other = {"weak-1": "strong-1", "strong-1": "weak-1"}[target]
            assert score == by_cell[name, target, "judge:judge-1"]
            assert by_cell[name, other, "judge:judge-1"] == 1 - score


@pytest.mark.parametrize(
    ("judges", "expected"),
    [(("strong-1", "judge-1"), "judge-1"), (("strong-1",), "strong-1")],
)
def test_a_judge_of_another_family_is_preferred(judges: tuple[str, ...], expected: str) -> None:
    pool, judging = build_pools("http://127.0.0.1:9/v1", judges=judges)
    answer_judges = AnswerJudges(judging)
    assert answer_judges.judge_of(pool["strong-1"]).name == expected
    assert answer_judges.relatives(pool) == (["strong-1"] if expected == "strong-1" else [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-4o-mini", "gpt"),
        ("openai/o3", "gpt"),
        ("Meta-Llama-3_1-70B-Instruct", "llama"),
        ("us.anthropic.claude-sonnet-4-5", "claude"),
        ("deepseek-r1-distill-llama-70b", "deepseek"),
        ("google/gemma-3-27b-it", "gemini"),
        ("atlas-2", "atlas"),
        ("123", "123"),
    ],
)
def test_a_family_is_told_by_its_name(name: str, expected: str) -> None:
    assert family(Target(name="large", model=name)) == expected


def test_answers_that_a_relative_judges_are_told(tmp_path: Path) -> None:
    url = write_traffic(tmp_path, 4)
    with serve_answers(answer) as (base_url, _):
        (note,) = label_traffic(url, base_url, judges=("strong-1",)).notes
    assert note.startswith("answers of strong-1 are judged by a model of their family")
