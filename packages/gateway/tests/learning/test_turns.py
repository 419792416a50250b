"""Agents' turns are judged by their ask and their last answer, and of the own target alone."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.gateway.tests.learning.test_labelling import labelled
from packages.gateway.tests.learning.test_rollout import SETTINGS, traffic
from packages.gateway.tests.learning.traffic import START, answer, is_right, pools, sampled
from packages.router.tests.fakes.answering_server import answering
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


def turn(number: int, *, ended_by: str = "weak-1") -> tuple[list[Receipt], SampledRequest]:
    """A turn of two requests, of which the last was kept."""
    first, sample = sampled(number)
    last, _ = sampled(number + 10_000, routed=ended_by)
    agent = {"agent": "claude-code", "kind": "main", "turn": None, "parent": None}
    session = f"c{number}"
    receipts = [
        replace(
            one,
            choice=replace(one.choice, session=session),
            at=START + number + later,
            details={"agent": {**agent, "is_ongoing": later > 0}},
        )
        for one, later in ((first, 0.0), (last, 0.5))
    ]
    kept = replace(sample, id=last.choice.id, at=receipts[1].at, is_turn=True)
    return receipts, kept


def write(folder: Path, *turns: tuple[list[Receipt], SampledRequest]) -> str:
    url = f"sqlite:///{folder}/receipts.sqlite"
    receipts = [to_row(one) for some, _ in turns for one in some]
    with closing(open_learning(url)) as store:
        insert_rows(store, receipts, [])
        write_learning(store, [sample for _, sample in turns])
    return url


def learned(url: str) -> DatasetExport:
    pool, _ = pools("http://127.0.0.1:9/v1")
    turns, samples = turns_by_request(url), labelled_samples(url)
    return export(scored_receipts(url), pool=pool, samples=samples, turns=turns)


def test_only_the_target_of_the_turn_is_labelled_and_none_is_asked_again(tmp_path: Path) -> None:
    url = write(tmp_path, *(turn(n) for n in range(6)), turn(9, ended_by="strong-1"))
    judged = []

    def reply(model: str, prompt: str) -> str:
        judged.append((model, prompt))
        return answer(model, prompt, judge_error=0)

    with answering(reply) as (base_url, _):
        found = labelled(url, base_url)
    assert found.requests == 6
    assert not list(read_learning(url, SideAnswer))
    assert {model for model, _ in judged} == {"judge-1"}
    asks = {sample.body["messages"][0]["content"] for _, sample in (turn(n) for n in range(6))}
    for _, prompt in judged:
        assert sum(ask in prompt for ask in asks) == 1
    for plan in read_learning(url, SideQuestions):
        assert plan.propensity == {"weak-1": 1.0, "strong-1": 0.0}
    made = learned(url)
    assert made.left_out == {"turns that several targets answered": 1}
    correct = made.dataset.correct
    expected = [float(is_right("weak-1", str(query.prompt))) for query in made.dataset.queries]
    np.testing.assert_array_equal(correct[:, 0], expected)
    assert np.isnan(correct[:, 1]).all()
    assert len(set(made.dataset.conversations or ())) == 6


def test_what_other_targets_would_have_done_cannot_be_told(tmp_path: Path) -> None:
    turns = [turn(n) for n in range(60)]
    url = write(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        for _, sample in turns:
            chances = {"weak-1": 1.0, "strong-1": 0.0}
            drawn = SideQuestions(id=sample.id, at=1, propensity=chances, drawn=["weak-1"])
            label = AnswerLabel(id=sample.id, target="weak-1", source="judge:j", at=1, score=1)
            write_learning(store, [drawn, label])
    data = learned(url).dataset
    random = np.random.default_rng(0)
    made = Predictions(
        query_ids=data.query_ids,
        targets=data.pool.names,
        correctness=random.random(data.correct.shape),
        estimated_cost=np.tile([1e-5, 2e-4], (len(data), 1)),
        scale=CostScale(1e-5, 2e-4),
    )
    overlap = Trial.join(made, data).overlap
    assert overlap is not None
    assert "queries lack overlap" in overlap.refusal


def test_feedback_on_the_turn_measures_the_judge_of_its_last_answer(tmp_path: Path) -> None:
    turns = [turn(n) for n in range(5)]
    url = write(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        said = [Feedback(id=receipts[0].choice.id, score=1, at=START) for receipts, _ in turns]
        insert_rows(store, [], [one.row() for one in said])
    with answering(answer) as (base_url, _):
        found = labelled(url, base_url)
    assert found.sources["user"].labels == 5
    assert found.sources["judge:judge-1"].by_users == 5


def test_the_latest_feedback_on_any_request_of_a_turn_measures_its_judge(tmp_path: Path) -> None:
    turns = [turn(n) for n in range(4)]
    url = write(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        for receipts, sample in turns:
            ids = [one.choice.id for one in receipts]
            first = Feedback(id=ids[0], score=1, at=START)
            second = Feedback(id=ids[1], score=0, at=START + 1)
            insert_rows(store, [], [first.row(), second.row()])
            label = AnswerLabel(
                id=sample.id, target="weak-1", source="verifier:function", at=START, score=0
            )
            write_learning(store, [label])
    with answering(answer) as (base_url, _):
        found = labelled(url, base_url)
    assert found.sources["user"].contradicted == 0


def test_the_end_of_a_turn_without_a_conversation_is_not_judged(tmp_path: Path) -> None:
    receipts, sample = turn(0)
    apart = [replace(one, choice=replace(one.choice, session=None)) for one in receipts]
    url = write(tmp_path, (apart, sample), turn(1))
    with answering(answer) as (base_url, _):
        assert labelled(url, base_url).requests == 1
    assert sample.id not in {one.id for one in read_learning(url, SideQuestions)}


def test_pairs_draw_nothing_for_turns_whose_feedback_counts(tmp_path: Path) -> None:
    turns = [turn(n) for n in range(3)]
    url = write(tmp_path, *turns)
    with closing(open_learning(url)) as store:
        scores = [Feedback(id=receipts[0].choice.id, score=1, at=START) for receipts, _ in turns]
        insert_rows(store, [], [one.row() for one in scores[:2]])
    with answering(answer) as (base_url, seen):
        assert labelled(url, base_url, form="pairs").requests == 0
    assert not seen
    assert not list(read_learning(url, SideQuestions))
    made = learned(url)
    assert made.left_out == {"sampled, but nothing was asked yet": 1}
    assert made.sources == {"user": 2}
    asks = [sample.body["messages"][0]["content"] for _, sample in turns]
    assert [query.prompt for query in made.dataset.queries] == asks[:2]
    np.testing.assert_array_equal(made.dataset.correct[:, 0], [1, 1])


def in_conversations(data: RolloutData, turns: int) -> RolloutData:
    """Each request so many times, as the turns of one conversation."""
    rows = np.repeat(np.arange(len(data)), turns)
    repeated = {n: None if v is None else v[rows] for n, v in vars(data).items()}
    return RolloutData(**{**repeated, "conversations": np.array([f"c{row}" for row in rows])})


def test_turns_of_few_conversations_prove_no_more_than_these() -> None:
    few = traffic(0.15, requests=60)
    once = decide_rollout(few, SETTINGS)
    turns = decide_rollout(in_conversations(few, 50), SETTINGS)
    alone = decide_rollout(replace(in_conversations(few, 50), conversations=None), SETTINGS)
    assert (once.action, turns.action, alone.action) == ("wait", "wait", "promote")
    assert turns.evidence["e_values"] == once.evidence["e_values"]
    assert (turns.evidence["requests"], turns.evidence["pairs"]) == (3000, 60)


def test_it_is_told_where_requests_lack_overlap() -> None:
    data = traffic(0.15, requests=400)
    apart = replace(data, propensity=np.tile([1.0, 0.0], (400, 1)))
    assert "400 of 400 requests say nothing" in decide_rollout(apart, SETTINGS).why
