"""A target quotes its key in an answer; no receipt and no memory keeps the key."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.scripted_target import ANSWER, chunked_reply, json_reply
from packages.gateway.tests.world import CHEAP, PRICES, chat, make_world, serve_world
from prefill_router_gateway.settings import LogSettings
from prefill_router_gateway.telemetry import logging_to

pytestmark = pytest.mark.slow

KEY = "sk-hush-0123456789"
CALLS = [{"id": f"call-{KEY}", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
QUOTING_ANSWER: dict[str, Any] = {
    **ANSWER,
    "id": f"chat-{KEY}",
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "account": KEY},
    "choices": [{"message": {"content": KEY, "tool_calls": CALLS}, "finish_reason": "stop"}],
}
EVENT = {
    "id": f"chat-{KEY}",
    "choices": [{"delta": {"content": "4", "tool_calls": CALLS}, "finish_reason": "stop"}],
    "usage": QUOTING_ANSWER["usage"],
}


def test_no_receipt_has_a_key(tmp_path: Path) -> None:
    settings = {"receipts": {"prompts": True}}
    with make_world(tmp_path, settings=settings, dialects=dict.fromkeys(PRICES, "openai")) as world:
        world.environment["LAB_KEY"] = KEY
        world[CHEAP].then(
            json_reply(QUOTING_ANSWER),
            chunked_reply([b"data: %b\n\n" % json.dumps(EVENT).encode(), b"data: [DONE]\n\n"]),
        )
        with serve_world(world) as gateway:
            replies = [gateway.ask(body=chat(CHEAP)), gateway.ask(body=chat(CHEAP, stream=True))]
            assert [reply.status for reply in replies] == [200, 200]
            assert not [reply for reply in replies if KEY.encode() in reply.body]
            assert [reply.body.count(b"[redacted]") for reply in replies] == [4, 3]
            request = chat(CHEAP, f"you said {KEY}")
            assert gateway.ask(body=request).status == 200
            outcomes = [receipt.outcome for receipt in gateway.receipts]
        assert [outcome.kind for outcome in outcomes] == ["answered"] * 3
        assert not [o for o in outcomes if KEY in repr((o.response_id, o.tool_calls))]
        rows = world.files.rows()
    assert len(rows) == 3
    assert "you said [redacted]" in rows[-1]["prompt"]
    assert [row["input_tokens"] for row in rows[:2]] == [3, 3]
    assert KEY not in repr(rows)
    assert KEY.encode() not in b"".join(p.read_bytes() for p in tmp_path.glob("receipts.sqlite*"))


def test_a_key_that_comes_with_a_reload_is_in_no_line_of_the_log(tmp_path: Path) -> None:
    stream, late, early = io.StringIO(), "a-late+key/0123456789", "an-early+key/0123456789"
    with (
        make_world(tmp_path, dialects=dict.fromkeys(PRICES, "openai")) as world,
        logging_to(LogSettings(), stream=stream) as log,
    ):
        world.environment["LAB_KEY"] = early
        with serve_world(world) as gateway:
            gateway.gateway.on_secrets.append(log.hide)
            world.environment["LAB_KEY"] = late
            gateway.wait_for(gateway.gateway.reload())
            logging.getLogger("prefill_router_gateway").warning("%s, %s, none", early, late)
    (line,) = (line for line in stream.getvalue().splitlines() if "none" in line)
    assert "[redacted], [redacted], none" in line
