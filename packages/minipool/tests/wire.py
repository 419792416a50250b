"""Asks a server as a client would, and reads a stream without any client's help."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2

from prefill_router_minipool.server import Server


def body(model: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def post(server: Server, value: Any, *, path: str = "/chat/completions") -> httpx2.Response:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return httpx2.post(server.base_url + path, content=content, timeout=20)


def read_stream(server: Server, text: str, *, model: str = "small", **fields: Any) -> list[Any]:
    """The events of a stream, the last of which must be the end mark."""
    request = body(model, text, stream=True, stream_options={"include_usage": True}, **fields)
    events = post(server, request).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], events
    data = [event for event in events[:-2] if not event.startswith(":")]
    return [json.loads(event.removeprefix("data: ")) for event in data]


def text_of(events: list[Any]) -> str:
    return "".join(c["delta"].get("content", "") for e in events for c in e["choices"])


def until(true: Callable[[], bool]) -> None:
    """Wait for something that happens soon after a reply has ended."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
