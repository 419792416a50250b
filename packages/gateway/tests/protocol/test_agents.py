"""Requests as coding agents send them: who asks, what, and in which conversation."""

import json
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.commands import check_refused, run_ok
from prefill_router.agents import RequestReading, load_harnesses
from prefill_router_gateway.api import PATHS
from prefill_router_gateway.protocol import read_envelope, scored_prompt
from prefill_router_gateway.protocol.envelope import Envelope
from prefill_router_gateway.protocol.message_to_chat import message_to_chat

ENDPOINTS = {path: endpoint for endpoint, path in PATHS.items()}
FOLDER = Path(__file__).parents[5] / "shared" / "samples" / "agents"
SAMPLES = sorted(FOLDER.glob("*.json"))
ASK = "Why does test_checkout fail only on Mondays? Find the cause and fix it."
CLAUDE = {"user-agent": "claude-cli/2.1.332", "x-claude-code-session-id": "s1"}


def read_sample(value: dict[str, Any]) -> tuple[Envelope, RequestReading]:
    headers = [(k.lower().encode(), v.encode()) for k, v in value["headers"].items()]
    envelope = read_envelope(ENDPOINTS[value["path"]], json.dumps(value["body"]).encode())
    return envelope, envelope.read(headers, load_harnesses())


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_a_sample_is_read_as_it_says(file: Path) -> None:
    value = json.loads(file.read_bytes())
    expected = value["expect"]
    _, reading = read_sample(value)
    for name in ("ask", "kind"):
        assert getattr(reading, name) == expected.get(name, getattr(reading, name))
    if "ask" in expected:
        assert list(reading.earlier) == expected.get("earlier", [])
        assert reading.failing_steps == expected.get("failing_steps", 0)


def test_samples_of_one_conversation_have_one_name_and_others_another() -> None:
    names: dict[str, set[str | None]] = {}
    for file in SAMPLES:
        value = json.loads(file.read_bytes())
        if "conversation" in value["expect"]:
            names_of_conversation = names.setdefault(value["expect"]["conversation"], set())
            names_of_conversation.add(read_sample(value)[1].conversation)
    assert all(len(group) == 1 for group in names.values())
    assert len({name for group in names.values() for name in group}) == len(names)


def messages(*turns: Any, system: Any = None, headers: Any = CLAUDE) -> dict[str, Any]:
    body = {"model": "auto", "max_tokens": 9, "messages": list(turns)}
    return {"path": "/v1/messages", "headers": headers, "body": {**body, "system": system}}


def test_results_and_texts_of_one_message_are_told_apart() -> None:
    turn = {"role": "user", "content": ASK}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash"}]}
    results = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True},
            {"type": "text", "text": "<system-reminder>\nGo on.\n</system-reminder>"},
        ],
    }
    _, reading = read_sample(messages(turn, call, results))
    assert (reading.ask, reading.failing_steps) == (ASK, 1)
    results["content"][1]["text"] = "Stop, and try another way."
    assert read_sample(messages(turn, call, results))[1].failing_steps == 0


def chats(*turns: Any) -> dict[str, Any]:
    return {
        "path": "/v1/chat/completions",
        "headers": {},
        "body": {"model": "auto", "messages": [{"role": "user", "content": ASK}, *turns]},
    }


def test_tool_calls_are_compared_in_every_protocol() -> None:
    arguments = json.dumps({"command": "pytest"})
    function = {"name": "Bash", "arguments": arguments}
    call = {"role": "assistant", "tool_calls": [{"id": "t", "function": function}]}
    result = {"role": "tool", "tool_call_id": "t", "content": "1 failed"}
    use = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "pytest"}}
    tool_result = {"type": "tool_result", "tool_use_id": "t", "content": "1 failed"}
    step = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [tool_result]}]
    items = [
        {"type": "function_call", "call_id": "c", "name": "shell", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "1 failed"},
    ]
    response = {"model": "auto", "input": [{"role": "user", "content": ASK}, *items * 3]}
    for value in (
        chats(*[call, result] * 3),
        messages({"role": "user", "content": ASK}, *step * 3),
        {"path": "/v1/responses", "headers": {}, "body": response},
    ):
        _, reading = read_sample(value)
        assert (reading.repeated_calls, reading.stalled_steps) == (2, 2), value["path"]


def test_a_long_loop_is_read_back_to_the_ask_in_every_protocol() -> None:
    function = {"name": "Bash", "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [{"id": "t", "function": function}]}
    result = {"role": "tool", "tool_call_id": "t", "content": "fine"}
    use = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    tool_result = {"type": "tool_result", "tool_use_id": "t", "content": "fine"}
    step = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [tool_result]}]
    items = [
        {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "fine"},
    ]
    turn, late = ({"role": "user", "content": text} for text in (ASK, f"{ASK} And refunds?"))
    beside = {"role": "user", "content": [tool_result, {"type": "text", "text": late["content"]}]}
    response = {"model": "auto", "input": [turn, *items * 120]}
    for value, ask in (
        (chats(*[call, result] * 120), ASK),
        (chats(*[call, result] * 60, late, *[call, result] * 60), late["content"]),
        (messages(turn, *step * 120), ASK),
        (messages(turn, *step * 60, step[0], beside, *step * 60), late["content"]),
        ({"path": "/v1/responses", "headers": {}, "body": response}, ASK),
    ):
        _, reading = read_sample(value)
        assert (reading.ask, reading.failing_steps, reading.repeated_calls) == (ask, 0, 49)


@pytest.mark.parametrize(
    ("kind", "field", "does"),
    [
        ("apply_patch_call", "operation", {"type": "update_file", "path": "a.py", "diff": "+1"}),
        ("file_search_call", "queries", ["Mondays"]),
        ("code_interpreter_call", "code", "print(1)"),
    ],
)
def test_calls_without_a_name_are_the_same_only_where_they_do_the_same(
    kind: str, field: str, does: Any
) -> None:
    def count(*what: Any) -> tuple[int, int]:
        items = [
            item
            for n, value in enumerate(what)
            for item in (
                {"type": kind, "id": f"i{n}", "call_id": f"c{n}", "status": "s", field: value},
                {"type": f"{kind}_output", "call_id": f"c{n}", "output": "Done!"},
            )
        ]
        body = {"model": "auto", "input": [{"role": "user", "content": ASK}, *items]}
        reading = read_sample({"path": "/v1/responses", "headers": {}, "body": body})[1]
        return reading.repeated_calls, reading.stalled_steps

    assert count(*[does] * 4) == (3, 3)
    assert count(*(does, "other", "third", "fourth")) == (0, 0)


def test_screenshots_are_never_the_same_result() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
    use = {"type": "tool_use", "id": "t", "name": "computer", "input": {"action": "screenshot"}}
    tool_result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    step = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [tool_result]}]
    reading = read_sample(messages({"role": "user", "content": ASK}, *step * 4))[1]
    assert (reading.repeated_calls, reading.stalled_steps) == (3, 0)
    action = {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}}
    shot = {"type": "computer_screenshot", "image_url": "data:,"}
    items = [action, {"type": "computer_call_output", "call_id": "c", "output": shot}]
    body = {"model": "auto", "input": [{"role": "user", "content": ASK}, *items * 4]}
    assert read_sample({"path": "/v1/responses", "headers": {}, "body": body})[1].stalled_steps == 0


def test_the_same_question_is_scored_alike_in_every_agent_and_alone() -> None:
    texts = set()
    for file in SAMPLES:
        value = json.loads(file.read_bytes())
        if value["expect"].get("ask") == ASK:
            envelope, reading = read_sample(value)
            texts.add(scored_prompt(envelope, "ask", reading))
            texts.add(scored_prompt(envelope, "ask"))  # of the body alone, as it is learned from
    assert texts <= {ASK}


def test_a_line_that_changes_with_each_request_is_not_translated() -> None:
    line = "x-anthropic-billing-header: cc_version=2; cch=ab12;"
    turn = {"role": "user", "content": ASK}
    rule: dict[str, Any] = {"limit": "max_tokens", "volatile": load_harnesses().volatile}
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "Be brief."}]
    for system in (
        blocks,
        f"{line}\nBe brief.",
        [{"type": "text", "text": f"{line}\n\nBe brief."}],
    ):
        chat = message_to_chat(messages(turn, system=system)["body"], **rule)
        assert chat["messages"][0] == {"role": "system", "content": "Be brief."}
    chat = message_to_chat(messages(turn, system=blocks[:1])["body"], **rule)
    assert [turn["role"] for turn in chat["messages"]] == ["user"]


def test_a_recorded_request_is_read_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    text = f"<system-reminder>\nBe brief.\n</system-reminder>\n{ASK}"
    file.write_text(json.dumps(messages({"role": "user", "content": text})))
    output = run_ok("read", file)
    assert f"ask: {ASK}\nkind: main\nagent: claude-code\nconversation: s1\n" in output
    assert "the header user-agent is 'claude-cli/2.1.332'" in output
    report = json.loads(run_ok("read", file, "--json"))
    assert (report["ask"], report["kind"], report["scored"]) == (ASK, "main", ASK)
    settings = tmp_path / "gateway.yaml"
    settings.write_text(
        "agents:\n  marks:\n    ours:\n      clients: [our-agent/]\n      blocks: [memo]\n"
    )
    own = messages(
        {"role": "user", "content": f"<memo>x</memo>\n{ASK}"}, headers={"user-agent": "our-agent/1"}
    )
    file.write_text(json.dumps(own))
    assert json.loads(run_ok("read", file, "--config", settings, "--json"))["ask"] == ASK
    assert json.loads(run_ok("read", file, "--json"))["ask"] != ASK


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "isn't JSON"),
        ("[]", "has no request"),
        ('{"path": "/v1/messages", "headers": 1, "body": {}}', "has no request"),
        ('{"path": "/v1/x", "body": {}}', "has the path '/v1/x'"),
        ('{"path": "/v1/messages", "body": {}}', "has no model"),
    ],
)
def test_what_is_no_recorded_request_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(text)
    check_refused(problem, "read", file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone.json"
    assert check_refused("No such file", "read", gone).startswith(f"error: {gone}: No such file")
