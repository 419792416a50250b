"""A gateway that is started again goes on from its receipts."""

import time
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import TOOL, completion, response, tool_completion
from packages.gateway.tests.scripted_target import json_reply
from packages.gateway.tests.world import (
    CHEAP,
    EXPENSIVE,
    MIDDLE,
    PATIENCE,
    PRICES,
    chat,
    make_world,
    serve_world,
    user,
)

pytestmark = pytest.mark.slow

HELPER = "helper"
ROWS = {
    **{name: {**row, "accepts": ["tools"]} for name, row in PRICES.items()},
    HELPER: {"serves": ["chat", "responses"], "input_price": 3.0, "output_price": 3.0},
}
SETTINGS = {
    "routing": {"lam": 0, "deadline_seconds": PATIENCE},
    "budgets": [{"dollars": 1.0, "per": "day", "stop": True}],
}


def test_conversations_and_spending_outlive_the_process(tmp_path: Path) -> None:
    day = time.time() // 86_400
    with make_world(tmp_path, ROWS, settings=SETTINGS) as world:
        with serve_world(world) as gateway:
            world[EXPENSIVE].then(json_reply(tool_completion("call_9")))
            world[HELPER].then(json_reply(response("resp_9")))
            gateway.ask(body=chat(EXPENSIVE, tools=[TOOL]))
            gateway.ask("/v1/responses", {"model": HELPER, "input": "Hi"})
            gateway.ask(body=chat(), lam="1", **{"x-session-id": "s"})
            receipts = gateway.receipts
        world.forget()
        with serve_world(world) as gateway:
            assert [r.choice.id for r in gateway.receipts] == [r.choice.id for r in receipts]
            (state,) = gateway.gateway.budgets.states(time.time())
            loop: list[Any] = [
                user("Weather?"),
                tool_completion("call_9")["choices"][0]["message"],
                {"role": "tool", "tool_call_id": "call_9", "content": "sunny"},
            ]
            world[EXPENSIVE].then(json_reply(completion()))
            reply = gateway.ask(body=chat(messages=loop, tools=[TOOL]))
            assert (reply.own_header("target"), reply.own_header("reason")) == (
                EXPENSIVE,
                "tool_loop",
            )
            world[HELPER].then(json_reply(response("resp_10")))
            body = {"model": "auto", "input": "And?", "previous_response_id": "resp_9"}
            reply = gateway.ask("/v1/responses", body)
            assert (reply.own_header("target"), reply.own_header("reason")) == (HELPER, "stored")
            state_after = gateway.gateway.sessions.state(receipts[-1].choice.session, time.time())
        assert world.requested_targets() == [EXPENSIVE, HELPER]
    assert state_after is not None
    assert state_after.target == receipts[-1].outcome.target
    if time.time() // 86_400 == day:  # at midnight a new day's budget is whole
        assert state.spent == sum(receipt.cost or 0 for receipt in receipts)
        assert 0 < state.spent < 1
    assert {CHEAP, MIDDLE}.isdisjoint({r.outcome.target for r in receipts})
