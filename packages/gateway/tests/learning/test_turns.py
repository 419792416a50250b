"""Agents' turns are judged by their ask and last answer, and only for their own target."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.gateway.tests.learning.test_labelling import label_traffic
from packages.gateway.tests.learning.test_rollout import SETTINGS, simulate_traffic
from packages.gateway.tests.learning.traffic import (
    START,
    answer,
    build_pools,
    build_sample,
    is_right,
)
from packages.router.tests.fakes.answering_server import serve_answers
from prefill_router.cost import CostScale
from prefill_router.evaluation import Trial
from prefill_router.policy import Predictions
from prefill_router_gateway import Receipt
from prefill_router_gateway.learning import RolloutData, decide_rollout
from prefill_router_gateway.receipts import (
    AnswerLabel,
    DatasetExport,
    Feedback,
    SampledRequest,
    SideAnswer,
    SideQuestions,
    export,
    insert_rows,
    labelled_samples,
    open_learning,
    read_learning,
    scored_receipts,
    turns_by_request,
    write_learning,
)
from prefill_router_gateway.receipts.rows import to_row

pytestmark = pytest.mark.slow


def build_turn(number: int, *, ended_by: str = "weak-1") -> tuple[list[Receipt], SampledRequest]:
    """A turn of two requests; its sample is of the second."""
    first, sample = build_sample(number)
    last, _ = build_sample(number + 10_000, routed=ended_by)
    agent = {"agent": "claude-code", "kind": "main", "turn": None, "parent": None}
    session = f"c{number}"
    receipts = [
        replace(
            receipt,
            choice=replace(receipt.choice, session=session),
            at=START + number + delay,
            details={"agent": {**agent, "is_ongoing": delay > 0}},
        )
        for receipt, delay in ((first, 0.0), (last, 0.5))
    ]
    turn_sample = replace(sample, id=last.choice.id, at=receipts[1].at, is_turn=True)
    return receipts, turn_sample


def write_turns(folder: Path, *turns: tuple[list[Receipt], SampledRequest]) -> str:
    url = f"sqlite:///{folder}/receipts.sqlite"
    receipts = [to_row(receipt) for some, _ in turns for receipt in some]
    with closing(open_learning(url)) as store:
        insert_rows(store, receipts, [])
        write_learning(store, [sample for _, sample in turns])
    return url


def export_turns(url: str) -> DatasetExport:
    pool, _ = build_pools("http://127.0.0.1:9/v1")
    turns, samples = turns_by_request(url), labelled_samples(url)
    return export(scored_receipts(url), pool=pool, samples=samples, turns=turns)


def test_only_the_target_of_the_turn_is_labelled_and_none_is_asked_again(tmp_path: Path) -> None:
    url = write_turns(
        tmp_path, *(build_turn(n) for n in range(6)), build_turn(9, ended_by="strong-1")
    )
    judge_calls = []

    def reply(model: str, prompt: str) -> str:
        judge_calls.append((model, prompt))
        return answer(model, prompt, judge_error=0)

    with serve_answers(reply) as (base_url, _):
        labelling_round = label_traffic(url, base_url)
    assert labelling_round.requests == 6
    assert not list(read_learning(url, SideAnswer))
    assert {model for model, _ in judge_calls} == {"judge-1"}
    asks = {
        sample.body["messages"][0]["content"] for _, sample in (build_turn(n) for n in range(6))
    }
    for _, prompt in judge_calls:
        assert sum(ask in prompt for ask in asks) == 1
    for plan in read_learning(url, SideQuestions):
        assert plan.propensity == {"weak-1": 1.0, "strong-1": 0.0}
    table = export_turns(url)
    assert table.left_out == {"turns that several targets answered": 1}
    correct = table.dataset.correct
    expected = [float(is_right("weak-1", str(query.prompt))) for query in table.dataset.queries]
    np.testing.assert_array_equal(correct[:, 0], expected)
    assert np.isnan(correct[:, 1]).all()
    assert len(set(table.dataset.conversations or ())) == 6


def test_what_other_targets_would_have_done_cannot_be_told(tmp_path: Path) -> None:
    turns = [build_turn(n) for n in range(60)]
    url = write_turns(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        for _, sample in turns:
            chances = {"weak-1": 1.0, "strong-1": 0.0}
            questions = SideQuestions(id=sample.id, at=1, propensity=chances, drawn=["weak-1"])
            label = AnswerLabel(id=sample.id, target="weak-1", source="judge:j", at=1, score=1)
            write_learning(store, [questions, label])
    data = export_turns(url).dataset
    random = np.random.default_rng(0)
    predictions = Predictions(
        query_ids=data.query_ids,
        targets=data.pool.names,
        correctness=random.random(data.correct.shape),
        estimated_cost=np.tile([1e-5, 2e-4], (len(data), 1)),
        scale=CostScale(1e-5, 2e-4),
    )
    overlap = Trial.join(predictions, data).overlap
    assert overlap is not None
    assert "queries lack overlap" in overlap.refusal


def test_feedback_on_the_turn_measures_the_judge_of_its_last_answer(tmp_path: Path) -> None:
    turns = [build_turn(n) for n in range(5)]
    url = write_turns(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        feedback = [Feedback(id=receipts[0].choice.id, score=1, at=START) for receipts, _ in turns]
        insert_rows(store, [], [report.row() for report in feedback])
    with serve_answers(answer) as (base_url, _):
        labelling_round = label_traffic(url, base_url)
    assert labelling_round.sources["user"].labels == 5
    assert labelling_round.sources["judge:judge-1"].by_users == 5


def test_the_latest_feedback_on_any_request_of_a_turn_measures_its_judge(tmp_path: Path) -> None:
    turns = [build_turn(n) for n in range(4)]
    url = write_turns(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        for receipts, sample in turns:
            ids = [receipt.choice.id for receipt in receipts]
            first = Feedback(id=ids[0], score=1, at=START)
            second = Feedback(id=ids[1], score=0, at=START + 1)
            insert_rows(store, [], [first.row(), second.row()])
            label = AnswerLabel(
                id=sample.id, target="weak-1", source="verifier:function", at=START, score=0
            )
            write_learning(store, [label])
    with serve_answers(answer) as (base_url, _):
        labelling_round = label_traffic(url, base_url)
    assert labelling_round.sources["user"].contradicted == 0


def test_the_end_of_a_turn_without_a_conversation_is_not_judged(tmp_path: Path) -> None:
    receipts, sample = build_turn(0)
    changed_receipts = [
        replace(receipt, choice=replace(receipt.choice, session=None)) for receipt in receipts
    ]
    url = write_turns(tmp_path, (changed_receipts, sample), build_turn(1))
    with serve_answers(answer) as (base_url, _):
        assert label_traffic(url, base_url).requests == 1
    assert sample.id not in {questions.id for questions in read_learning(url, SideQuestions)}


def test_pairs_draw_nothing_for_turns_whose_feedback_counts(tmp_path: Path) -> None:
    turns = [build_turn(n) for n in range(3)]
    url = write_turns(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        scores = [Feedback(id=receipts[0].choice.id, score=1, at=START) for receipts, _ in turns]
        insert_rows(store, [], [report.row() for report in scores[:2]])
    with serve_answers(answer) as (base_url, bodies):
        assert label_traffic(url, base_url, form="pairs").requests == 0
    assert not bodies
    assert not list(read_learning(url, SideQuestions))
    table = export_turns(url)
    assert table.left_out == {"sampled, but nothing was asked yet": 1}
    assert table.sources == {"user": 2}
    asks = [sample.body["messages"][0]["content"] for _, sample in turns]
    assert [query.prompt for query in table.dataset.queries] == asks[:2]
    np.testing.assert_array_equal(table.dataset.correct[:, 0], [1, 1])


def repeat_in_conversations(data: RolloutData, turns: int) -> RolloutData:
    """Repeat each request `turns` times, as turns of one conversation."""
    rows = np.repeat(np.arange(len(data)), turns)
    columns = {n: None if v is None else v[rows] for n, v in vars(data).items()}
    return RolloutData(**{**columns, "conversations": np.array([f"c{row}" for row in rows])})


def test_turns_of_few_conversations_prove_no_more_than_these() -> None:
    few = simulate_traffic(0.15, requests=60)
    once = decide_rollout(few, SETTINGS)
    turns = decide_rollout(repeat_in_conversations(few, 50), SETTINGS)
    ungrouped = decide_rollout(
        replace(repeat_in_conversations(few, 50), conversations=None), SETTINGS
    )
    assert (once.action, turns.action, ungrouped.action) == ("wait", "wait", "promote")
    assert turns.evidence["e_values"] == once.evidence["e_values"]
    assert (turns.evidence["requests"], turns.evidence["pairs"]) == (3000, 60)


def test_it_is_told_where_requests_lack_overlap() -> None:
    data = simulate_traffic(0.15, requests=400)
    without_overlap = replace(data, propensity=np.tile([1.0, 0.0], (400, 1)))
    assert "400 of 400 requests say nothing" in decide_rollout(without_overlap, SETTINGS).why
