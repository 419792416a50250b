"""Outcomes of agents' turns and conversations: what they are credited to, and what is learned."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.api.bodies import completion, tool_completion
from packages.gateway.tests.api.test_sampling import stored_sample
from packages.gateway.tests.scripted_target import json_reply
from packages.gateway.tests.world import (
    CHEAP,
    PRICES,
    LocalGateway,
    Reply,
    World,
    ask,
    chat,
    make_world,
    user,
)
from prefill_router.data import Prompt
from prefill_router_gateway.forecast import Forecaster
from prefill_router_gateway.receipts import (
    AnswerLabel,
    DatasetExport,
    SideQuestions,
    export,
    labelled_samples,
    open_learning,
    scored_receipts,
    sessions_since,
    turns_by_request,
    write_learning,
)
from prefill_router_gateway.runtime import plain_prompt

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[5] / "shared" / "samples" / "agents"
SAMPLES = sorted(FOLDER.glob("*.json"))
CLAUDE = {"user-agent": "claude-cli/2.1.332", "authorization": "Bearer pr-ann"}
SETTINGS: dict[str, Any] = {
    "receipts": {"prompts": True, "wait_seconds": 60},
    "learning": {"share": 1, "keep_texts": True},
    "failures": {"retries": 0},
    "agents": {"marks": {"our-agent": {"clients": ["our-agent/"], "blocks": ["memo"]}}},
}
KEYS = [
    {"name": name, "sha256": sha256(f"pr-{name}".encode()).hexdigest(), "admin": name == "root"}
    for name in ("ann", "bob", "root")
]
ROWS = {name: {**PRICES[name], "accepts": ["tools", "images"]} for name in PRICES}
TOOL = {"name": "Bash", "input_schema": {"type": "object"}}
ASK = "Why does the checkout fail on Mondays, and only there?"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("agent_learning")
    with make_world(folder, ROWS, settings=SETTINGS, keys=KEYS) as world:
        yield world


@pytest.fixture(autouse=True)
def _answers(world: World) -> None:
    world.forget()
    for name in PRICES:
        world[name].then(*[json_reply(completion("done"))] * 60)


def queue_scripts(world: World, *scripts: Any) -> None:
    for name in PRICES:
        world[name].next.extendleft(reversed(scripts))


def send(gateway: LocalGateway, session: str, turns: list[Any], **headers: str) -> Reply:
    body = {"model": "auto", "max_tokens": 9, "messages": turns, "tools": [TOOL]}
    own = {**CLAUDE, "x-claude-code-session-id": session, **headers}
    reply = ask(gateway.url, "/v1/messages", body, own)
    assert reply.status == 200, reply.body
    return reply


def run_turn(gateway: LocalGateway, world: World, session: str, text: str) -> list[Reply]:
    """Send a turn of two requests: the first answer calls a tool, the second has the result."""
    queue_scripts(world, json_reply(tool_completion()))
    first = send(gateway, session, [user(text)])
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "12 passed"}
    turns = [user(text), {"role": "assistant", "content": [call]}, user([result])]
    return [first, send(gateway, session, turns)]


def score(gateway: LocalGateway, key: str = "ann", **body: Any) -> Reply:
    return gateway.ask("/v1/feedback", body, authorization=f"Bearer pr-{key}")


def export_dataset(gateway: LocalGateway, **options: Any) -> DatasetExport:
    url = gateway.gateway.receipts_url
    return export(scored_receipts(url), turns=turns_by_request(url), **options)


def labels_of(exported: DatasetExport, prompt: str) -> dict[str, float]:
    dataset = exported.dataset
    (row,) = [i for i, query in enumerate(dataset.queries) if query.prompt == prompt]
    values = zip(dataset.pool.names, dataset.correct[row].tolist(), strict=True)
    return {name: value for name, value in values if not np.isnan(value)}


def test_a_commit_is_credited_to_each_turn_of_its_conversation(
    world: World, gateway: LocalGateway
) -> None:
    first, _ = run_turn(gateway, world, "c1", f"{ASK} First.")
    second, _ = run_turn(gateway, world, "c1", f"{ASK} Second.")
    title = {"system": "You are coming up with a succinct title for a coding session."}
    body = {"model": "auto", "max_tokens": 9, "messages": [user(ASK)], **title}
    aside = ask(gateway.url, "/v1/messages", body, {**CLAUDE, "x-claude-code-session-id": "c1"})
    assert aside.status == 200
    reply = score(gateway, conversation="c1", score=1, source="commit")
    assert reply.status == 200
    ids = [first.own_header("decision-id"), second.own_header("decision-id")]
    assert reply.json == {"turns": ids, "kept": True}
    exported = export_dataset(gateway)
    for answer, text in ((first, "First."), (second, "Second.")):
        assert labels_of(exported, f"{ASK} {text}") == {answer.own_header("target"): 1}
    assert ASK not in [query.prompt for query in exported.dataset.queries]
    conversations = {
        query.conversation for query in exported.dataset.queries if ASK in str(query.prompt)
    }
    assert len(conversations) == 1


def test_a_thumb_is_of_one_turn(world: World, gateway: LocalGateway) -> None:
    first, step = run_turn(gateway, world, "c2", f"{ASK} Third.")
    second, _ = run_turn(gateway, world, "c2", f"{ASK} Fourth.")
    last = score(gateway, conversation="c2", turn="last", score=0)
    assert last.json["turns"] == [second.own_header("decision-id")]
    assert score(gateway, id=step.own_header("decision-id"), score=1).json["kept"]
    exported = export_dataset(gateway)
    assert labels_of(exported, f"{ASK} Third.") == {first.own_header("target"): 1}
    assert labels_of(exported, f"{ASK} Fourth.") == {second.own_header("target"): 0}


def test_a_request_that_names_its_target_belongs_to_its_turn_and_moves_nothing(
    world: World, gateway: LocalGateway
) -> None:
    first, step = run_turn(gateway, world, "c7", f"{ASK} Seventh.")
    other = next(name for name in PRICES if name != first.own_header("target"))
    body = {"model": other, "max_tokens": 9, "messages": [user("Look around.")], "tools": [TOOL]}
    headers = {**CLAUDE, "x-claude-code-session-id": "c7", "x-claude-code-agent-id": "a1"}
    assert ask(gateway.url, "/v1/messages", body, headers).own_header("reason") == "named"
    *_, routed, helper = gateway.receipts
    assert helper.choice.session not in (None, routed.choice.session)
    assert helper.details["agent"]["parent"] == routed.choice.session
    assert gateway.gateway.sessions.last_state(helper.choice.session) is None
    assert score(gateway, id=step.own_header("decision-id"), score=1).json["kept"]
    url = gateway.gateway.receipts_url
    turn = turns_by_request(url)[str(step.own_header("decision-id"))]
    assert (turn.target, turn.why) == (None, "turns that several targets answered")
    calls = {call.session for call in sessions_since(url, 0.0)}
    assert routed.choice.session in calls
    assert helper.choice.session not in calls


def test_conversations_are_scored_by_their_own_key_and_by_admins(
    world: World, gateway: LocalGateway
) -> None:
    run_turn(gateway, world, "c3", f"{ASK} Fifth.")
    name = gateway.receipts[-1].choice.session
    for wrong in ({"conversation": "c3"}, {"conversation": name}):
        reply = score(gateway, "bob", score=1, **wrong)
        assert (reply.status, reply.error["code"]) == (404, "unknown_conversation")
    assert score(gateway, "root", conversation=name, score=1).status == 200
    assert score(gateway, conversation="c3", turn="none", score=1).status == 404
    for odd in ({}, {"id": "pr_1", "conversation": "c3"}, {"turn": "last"}):
        assert score(gateway, score=1, **odd).status == 400


def test_a_header_names_a_conversation_of_any_client(gateway: LocalGateway) -> None:
    headers = {"authorization": "Bearer pr-ann", "x-session-id": "h1"}
    for text in ("What is a monad?", "And a functor?"):
        assert ask(gateway.url, body=chat(text=text), headers=headers).status == 200
    assert len(score(gateway, conversation="h1", score=1).json["turns"]) == 2
    rows = {query.prompt: query.conversation for query in export_dataset(gateway).dataset.queries}
    assert rows["What is a monad?"] not in ("", None)
    assert len({c for prompt, c in rows.items() if "monad" in prompt or "functor" in prompt}) == 1


def test_a_turn_is_kept_by_its_ask_and_its_last_answer(world: World, gateway: LocalGateway) -> None:
    reminder = "<system-reminder>\nKeep functions short.\n</system-reminder>"
    first, last = run_turn(gateway, world, "c4", f"{reminder}\n{ASK} Sixth.")
    assert stored_sample(gateway, first) is None
    sample = stored_sample(gateway, last)
    assert sample is not None
    assert sample.is_turn
    assert (sample.prompt, sample.answer) == (f"{ASK} Sixth.", "done")
    assert sample.body == {"messages": [user(f"{ASK} Sixth.")]}


@pytest.mark.skipif(not SAMPLES, reason=f"the samples are not at {FOLDER}")
def test_what_is_learned_is_what_the_forecaster_encoded(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Prompt] = []
    forecast = Forecaster.forecast

    async def spy(self: Forecaster, prompt: Prompt, **more: Any) -> Any:
        encoded.append(prompt)
        return await forecast(self, prompt, **more)

    monkeypatch.setattr(Forecaster, "forecast", spy)
    ours = {
        "path": "/v1/chat/completions",
        "headers": {"user-agent": "our-agent/1"},
        "body": chat(
            text="<memo>\nBe brief.\n</memo>\nHow is a lock that two threads share freed?"
        ),
    }
    prompts: dict[str, Any] = {}
    values = [*(json.loads(file.read_bytes()) for file in SAMPLES), ours]
    for number, value in enumerate(values):
        before = len(encoded)
        reply = send_sample(gateway, value, number)
        if reply is not None and len(encoded) > before:
            name = str(reply.own_header("decision-id"))
            assert score(gateway, id=name, score=1).status == 200
            stored_sample(gateway, reply)
            prompts[name] = plain_prompt(encoded[-1])
    assert len(prompts) > 20
    assert "How is a lock that two threads share freed?" in prompts.values()
    url = gateway.gateway.receipts_url
    receipts = [pair for pair in scored_receipts(url) if pair[0].choice.id in prompts]
    credited = [pair for pair in receipts if kind_of(pair[0]) not in ("auxiliary", "compaction")]
    for pair in credited:  # by feedback, each by itself
        (query,) = export([pair]).dataset.queries
        assert plain_prompt(query.prompt) == prompts[pair[0].choice.id]
    samples = {name: sample for name, sample in labelled_samples(url).items() if name in prompts}
    assert len(samples) > 15
    with closing(open_learning(url)) as store:
        write_learning(store, [row for name in samples for row in label_rows(name)])
    samples_with_labels = {
        name: sample for name, sample in labelled_samples(url).items() if name in samples
    }
    dataset = export(credited, samples=samples_with_labels).dataset
    assert set(samples) <= set(dataset.query_ids)
    for query in dataset.queries:
        if query.id in samples:
            assert plain_prompt(query.prompt) == prompts[query.id]


def send_sample(gateway: LocalGateway, value: Mapping[str, Any], number: int) -> Reply | None:
    """The reply to a recorded request, in a conversation of its own; None where it is refused."""
    body = {**value["body"], "stream": False, "model": "auto"}
    named = {"x-session-id": f"sample-{number}", "authorization": "Bearer pr-ann"}
    headers = {n: v for n, v in value["headers"].items() if n not in ("authorization", "x-api-key")}
    reply = ask(gateway.url, value["path"], body, {**headers, **named})
    return reply if reply.status == 200 else None


def kind_of(receipt: Any) -> str | None:
    return receipt.details.get("agent", {}).get("kind")


def label_rows(name: str) -> tuple[SideQuestions, AnswerLabel]:
    chances = dict.fromkeys(PRICES, 1.0)
    label = AnswerLabel(id=name, target=CHEAP, source="judge:j", at=1.0, score=1, error=0.1)
    return SideQuestions(id=name, at=1.0, propensity=chances, drawn=[*chances]), label


def test_a_plain_client_with_tools_has_turns_too(world: World, gateway: LocalGateway) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    headers = {"authorization": "Bearer pr-ann", "x-session-id": "h2"}
    turns = [user("Is it warm in Zürich?")]
    queue_scripts(world, json_reply(tool_completion("call_h2")))
    body = {"model": "auto", "messages": turns, "tools": [tool]}
    first = ask(gateway.url, body=body, headers=headers)
    call = {"id": "call_h2", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_h2", "content": "12 degrees"}
    turns += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
    last = ask(gateway.url, body={**body, "messages": turns}, headers=headers)
    assert (first.status, last.status) == (200, 200)
    sample = stored_sample(gateway, last)
    assert sample is not None
    assert (sample.is_turn, sample.prompt) == (True, "Is it warm in Zürich?")
    assert score(gateway, conversation="h2", score=1).json["turns"] == [
        first.own_header("decision-id")
    ]
    assert labels_of(export_dataset(gateway), "Is it warm in Zürich?") == {
        first.own_header("target"): 1
    }
