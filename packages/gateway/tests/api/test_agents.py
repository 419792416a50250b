"""A gateway in front of coding agents: what decides, and which requests belong together."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import completion
from packages.gateway.tests.scripted_target import json_reply, pool_of
from packages.gateway.tests.world import (
    CHEAP,
    HEADER,
    MIDDLE,
    PRICES,
    LocalGateway,
    World,
    ask,
    chat,
    make_world,
    user,
)
from prefill_router_gateway.api.routed_calls import read_incoming
from prefill_router_gateway.receipts import explain
from prefill_router_gateway.records import Receipt
from prefill_router_gateway.settings import GatewaySettings

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[5] / "shared" / "samples" / "agents"
CHATS_ALONE = ("codex", "topic")  # of Responses, and with a prefilled answer
SAMPLES = [
    file
    for file in sorted(FOLDER.glob("*.json"))
    if not any(word in file.stem for word in CHATS_ALONE)
]
ROWS = {name: {**PRICES[name], "accepts": ["tools", "images"]} for name in PRICES}
ROWS[CHEAP] |= {"cached_input_price": 0.01, "cache_write_price": 0.125}
SETTINGS = {
    "receipts": {"prompts": True},
    "failures": {"retries": 0},
    "agents": {
        "escalation": "on",
        "subagent": {"targets": [MIDDLE]},
        "by_agent": {"opencode": {"main": {"targets": [CHEAP, MIDDLE]}}},
        "types": {"Plan": {"lam": 0.5}},
    },
    "routing": {"lam": 1.0},
}
ASK = "Why does test_checkout fail only on Mondays? Find the cause and fix it."
REMINDER = "<system-reminder>\nKeep functions short.\n</system-reminder>"
CLAUDE = {"user-agent": "claude-cli/2.1.332", "x-claude-code-session-id": "s1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("agents")
    with make_world(folder, ROWS, settings=SETTINGS) as world:
        yield world


def send(
    gateway: LocalGateway, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> Receipt:
    """The receipt of a request that is answered."""
    reply = ask(gateway.url, path, {**body, "stream": False}, headers)
    assert reply.status == 200, reply.body
    return gateway.receipts[-1]


@pytest.fixture(autouse=True)
def _answers(world: World) -> None:
    world.forget()
    for name in PRICES:
        world[name].then(*[json_reply(completion("done"))] * 40)


@pytest.mark.skipif(not SAMPLES, reason=f"the samples are not at {FOLDER}")
def test_what_agents_send_is_scored_by_its_ask_and_kept_by_its_conversation(
    gateway: LocalGateway,
) -> None:
    sessions: dict[str, set[str | None]] = {}
    for file in SAMPLES:
        value = json.loads(file.read_bytes())
        expected = value["expect"]
        receipt = send(gateway, value["path"], value["body"], value["headers"])
        if expected.get("ask") == ASK:
            assert receipt.prompt == ASK, file.stem
        if expected["kind"] == "auxiliary":
            assert receipt.choice.session is None
        if "conversation" in expected:
            sessions.setdefault(expected["conversation"], set()).add(receipt.choice.session)
    assert all(len(names) == 1 and None not in names for names in sessions.values())
    assert len(set.union(*sessions.values())) == len(sessions)


def test_a_receipt_says_who_asked_and_what_for(gateway: LocalGateway) -> None:
    body = {"model": "auto", "max_tokens": 9, "messages": [user(f"{REMINDER}\n{ASK}")]}
    headers = {
        "x-claude-code-agent-id": "a7",
        "x-claude-code-prompt-id": "p1",
        "x-claude-code-agent-type": "Explore",
    }
    main = send(gateway, "/v1/messages", body, CLAUDE)
    sub = send(gateway, "/v1/messages", body, {**CLAUDE, **headers})
    assert main.prompt == sub.prompt == ASK
    assert main.choice.session not in (None, sub.choice.session)
    assert sub.details["agent"] == {
        "agent": "claude-code",
        "kind": "subagent",
        "turn": "p1",
        "type": "Explore",
        "parent": main.choice.session,
        "is_ongoing": False,
        "failing_steps": 0,
        "repeated_calls": 0,
        "stalled_steps": 0,
        "expected_requests": 8.0,
    }
    assert "asked by claude-code: a subagent's task" in explain(sub).sentences()


def test_other_clients_are_read_as_before(gateway: LocalGateway) -> None:
    receipt = send(gateway, "/v1/chat/completions", chat(text=f"{REMINDER}\n{ASK}"), {})
    assert receipt.prompt == f"{REMINDER}\n{ASK}"
    assert "agent" not in receipt.details
    assert receipt.choice.opening


def test_the_output_of_tools_that_fail_is_counted(gateway: LocalGateway) -> None:
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    failed = {"type": "tool_result", "tool_use_id": "t", "content": "Exit code 1"}
    turns = [user(ASK), {"role": "assistant", "content": [call]}, user([failed])]
    tool = {"name": "Bash", "input_schema": {"type": "object"}}
    body = {"model": "auto", "max_tokens": 9, "messages": turns, "tools": [tool]}
    receipt = send(gateway, "/v1/messages", body, CLAUDE)
    assert receipt.prompt == ASK
    assert receipt.details["agent"]["failing_steps"] == 1
    assert receipt.details["agent"]["is_ongoing"]
    assert receipt.details["agent"]["expected_requests"] == 1
    assert "results of tools that failed in a row before it: 1" in explain(receipt).sentences()


def test_a_receipt_says_what_a_cache_saves(gateway: LocalGateway) -> None:
    receipt = send(gateway, "/v1/chat/completions", chat(text=ASK), {})
    _, saved, seconds = receipt.details["cache"][CHEAP]
    assert (saved, seconds) == (pytest.approx((0.125 - 0.01) / 1e6), 300.0)


@pytest.mark.parametrize(("ttl", "mark"), [({}, "minutes"), ({"ttl": "1h"}, "hour")])
def test_a_request_says_for_how_long_it_is_cached(ttl: dict[str, str], mark: str) -> None:
    part = {"type": "text", "text": ASK, "cache_control": {"type": "ephemeral", **ttl}}
    body = {"model": "auto", "max_tokens": 9, "messages": [user([part])]}
    incoming = read_incoming(
        "messages",
        json.dumps(body).encode(),
        [],
        key=None,
        settings=GatewaySettings(),
        pool=pool_of("http://127.0.0.1:9/v1"),
        lam=None,
        at=0.0,
    )
    assert incoming.question.cache_mark == mark


def test_a_task_whose_tools_fail_goes_to_a_stronger_target_once(gateway: LocalGateway) -> None:
    headers = {**CLAUDE, "x-claude-code-session-id": "s9"}
    tool = {"name": "Bash", "input_schema": {"type": "object"}}
    turns: list[dict[str, Any]] = [user(ASK)]

    def go_on(lam: str) -> Receipt:
        body = {"model": "auto", "max_tokens": 9, "messages": turns, "tools": [tool]}
        receipt = send(gateway, "/v1/messages", body, {**headers, HEADER + "lam": lam})
        call = {"type": "tool_use", "id": f"t{len(turns)}", "name": "Bash", "input": {"n": 1}}
        failed = {"type": "tool_result", "tool_use_id": call["id"], "content": "Exit code 1"}
        turns.extend([{"role": "assistant", "content": [call]}, user([failed])])
        return receipt

    receipts = [go_on("0")] + [go_on("1") for _ in range(7)]
    reasons = [receipt.choice.reason for receipt in receipts]
    assert reasons == ["policy", *["tool_loop"] * 2, "escalation", *["tool_loop"] * 4]
    first, escalated, *after = receipts[0], *receipts[3:]
    stronger = escalated.choice.target
    assert first.choice.target == CHEAP
    assert escalated.choice.correctness[stronger] > escalated.choice.correctness[CHEAP]
    assert {receipt.choice.target for receipt in after} == {stronger}
    escalation = escalated.choice.escalation
    assert escalation is not None
    assert (escalation.target, escalation.cause, escalation.count) == (stronger, "failing_steps", 3)
    words = f"3 results of tools failed in a row: the task goes to {stronger}"
    assert words in explain(escalated).sentences()


def test_a_target_that_cannot_read_anothers_state_passes_the_request_on(
    world: World, gateway: LocalGateway
) -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    answer = {"type": "text", "text": "It is the tax rule."}
    turns = [
        user(ASK),
        {"role": "assistant", "content": [thinking, answer]},
        user("And on Sundays?"),
    ]
    body = {"model": "auto", "max_tokens": 9, "messages": turns}
    error = {"message": "messages.1.content.0: Invalid `signature` in `thinking` block"}
    refusal = json_reply({"type": "error", "error": error}, status=400)
    first = send(gateway, "/v1/messages", body, {**CLAUDE, "x-claude-code-session-id": "s7"})
    world[first.choice.target].forget()
    world[first.choice.target].then(refusal)
    other = {**CLAUDE, "x-claude-code-session-id": "s8"}  # whose target isn't known
    receipt = send(gateway, "/v1/messages", body, other)
    assert [a.end for a in receipt.outcome.attempts] == ["unsupported", "answered"]
    again = send(gateway, "/v1/messages", body, other)
    assert (again.choice.reason, again.choice.target) == ("state", receipt.outcome.target)


def test_each_kind_of_requests_is_routed_by_its_own_settings(gateway: LocalGateway) -> None:
    title = "You are coming up with a succinct title for a coding session."
    body = {"model": "auto", "max_tokens": 9, "messages": [user(ASK)]}
    main = send(gateway, "/v1/messages", body, CLAUDE)
    title_request = send(gateway, "/v1/messages", {**body, "system": title}, CLAUDE)
    sub = send(gateway, "/v1/messages", body, {**CLAUDE, "x-claude-code-agent-id": "a9"})
    assert (main.choice.lam, title_request.choice.lam, sub.choice.lam) == (1.0, 0.0, 1.0)
    assert main.choice.target not in (CHEAP, MIDDLE)
    assert title_request.choice.target == CHEAP
    assert sub.choice.order == (MIDDLE,)
    typed = {"x-claude-code-agent-id": "a9", "x-claude-code-agent-type": "Plan"}
    planner = send(gateway, "/v1/messages", body, {**CLAUDE, **typed})
    assert (planner.choice.lam, planner.choice.order) == (0.5, (MIDDLE,))  # the kind's targets
    opencode = {"user-agent": "opencode/1.18.33", "x-session-id": "ses_1"}
    other = send(gateway, "/v1/chat/completions", chat(text=ASK), opencode)
    assert set(other.choice.order) == {CHEAP, MIDDLE}
    wish = {HEADER + "lam": "1"}
    assert (
        send(gateway, "/v1/messages", {**body, "system": title}, {**CLAUDE, **wish}).choice.lam == 1
    )
