"""Sends malformed requests over a few connections, and looks at every reply."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from benchmarks._malformed import Case

UPSTREAM_KEY = "sk-upstream-key-of-these-tests"
_PATIENCE = 40.0
_NO_BODY = (204, 304)
_FIRST_FINAL, _FIRST_ERROR, _INTERNAL = 200, 400, 500
_MOST_REPORTED = 10


@final
@dataclass
class Replies:
    """What came back.

    Attributes:
        statuses: How many replies had which status.
        kinds: How many requests of which kind were sent.
        wrong: What must not be: a kind, and what came.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def report(self, case: Case, what: str) -> None:
        """Keep what must not be, up to a few."""
        if len(self.wrong) < _MOST_REPORTED:
            self.wrong.append(f"{case.kind}: {what}; sent {case.data[:1500]!r}")


async def attack(
    port: int, cases: Iterable[Case], *, secrets: Sequence[str], connections: int = 4
) -> Replies:
    """Send every case.

    Args:
        port: On loopback.
        cases: What is sent.
        secrets: What no reply may hold.
        connections: How many at once; one that the server closes is opened again.
    """
    replies, waiting = Replies(), iter(cases)
    hidden = [secret.encode() for secret in secrets]

    async def send_cases() -> None:
        pair: Any = None
        for case in waiting:
            replies.kinds[case.kind.split(" /")[0]] += 1
            pair = pair or await asyncio.open_connection("127.0.0.1", port, limit=2**24)
            try:
                async with asyncio.timeout(_PATIENCE):
                    goes_on = await _send(pair, case, replies, hidden)
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                replies.report(case, f"no answer ({type(error).__name__})")
                goes_on = False
            if not goes_on:
                pair[1].close()
                pair = None
        if pair is not None:
            pair[1].close()

    await asyncio.gather(*(send_cases() for _ in range(connections)))
    return replies


async def _send(
    pair: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    case: Case,
    replies: Replies,
    hidden: Sequence[bytes],
) -> bool:
    """Send one, and look at what comes; whether the connection goes on."""
    reader, writer = pair
    writer.write(case.data)
    closes = False
    for _ in range(case.replies):
        status, head, body = await read_reply(reader, bodiless=case.kind.startswith("HEAD "))
        replies.statuses[status] += 1
        closes |= b"\r\nconnection: close" in head.lower()
        if status == _INTERNAL:
            replies.report(case, f"status 500, {body[:300]!r}")
        if any(secret in head or secret in body for secret in hidden):
            replies.report(case, f"a secret came back: {head!r} {body[:300]!r}")
        if status >= _FIRST_ERROR and not case.kind.startswith("HEAD ") and not is_error(body):
            replies.report(case, f"no error in JSON: {head!r} {body[:300]!r}")
        if closes:  # what was sent behind it isn't looked at
            break
    return bool(case.replies) and not case.ends and not closes


async def read_reply(
    reader: asyncio.StreamReader, *, bodiless: bool = False
) -> tuple[int, bytes, bytes]:
    """A reply's status, head and body.

    Raises:
        EOFError: The connection was closed before its end.
        ValueError: It is none.
    """
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status >= _FIRST_FINAL:
            break
    low = head.lower()
    place = low.find(b"\r\ncontent-length:")
    if bodiless or status in _NO_BODY:
        return status, head, b""
    if place >= 0:
        length = int(low[place + 17 :].split(b"\r\n", 1)[0])
        return status, head, await reader.readexactly(length)
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append((await reader.readexactly(size + 2))[:size])
    await reader.readexactly(2)
    return status, head, b"".join(pieces)


def is_error(body: bytes) -> bool:
    """Whether a body is an error, in the shape of either protocol."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(message, str) and bool(message)


class LeakyTarget:
    """A target that quotes its key in errors, headers and broken answers, never in a good answer.

    Attributes:
        requests: How many requests it heard.
        is_kind: Whether it only answers from now on.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.is_kind = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes over one connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                low = head.lower()
                place = low.find(b"content-length:")
                await reader.readexactly(int(low[place + 15 :].split(b"\r\n", 1)[0]))
                self.requests += 1
                writer.write(self._reply(head.split(b" ", 2)[1]))
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    def _reply(self, path: bytes) -> bytes:
        turn = 0 if self.is_kind else self.requests % 12
        error = {"error": {"message": f"wrong key {UPSTREAM_KEY}", "type": "x", "code": None}}
        status = {1: 400, 3: 401, 5: 422, 7: 500, 9: 403, 11: 200}.get(turn, 200)
        value = error if turn % 2 else _ANSWERS.get(path.rsplit(b"/", 1)[1], _CHAT)
        body = json.dumps(value).encode()
        head = (
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
            f"x-echo: Bearer {UPSTREAM_KEY}\r\nset-cookie: k={UPSTREAM_KEY}\r\n"
            f"x-request-id: {UPSTREAM_KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


_CHOICE = {
    "index": 0,
    "message": {"role": "assistant", "content": "yes"},
    "text": "yes",
    "finish_reason": "stop",
}
_CHAT = {
    "id": "c1",
    "object": "chat.completion",
    "model": "m",
    "choices": [_CHOICE],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
_ANSWERS: dict[bytes, dict[str, Any]] = {
    b"responses": {"id": "r1", "object": "response", "status": "completed", "output": []},
    b"messages": {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 1},
    },
    b"embeddings": {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": "m"},
}
