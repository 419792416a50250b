"""A target that answers at once, in a process of its own: the least that a server can do.

A request that asks for a stream gets twenty chunks at once, others a reply in one piece. Where it
holds the word `hold`, its stream waits after the first chunk until all are let go (any GET).
"""

import asyncio
import json
import sys
from typing import final

_USAGE = {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60}
_HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}


def _whole() -> bytes:
    message = {"role": "assistant", "content": "word " * 20}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({**_HEAD, "choices": [choice], "usage": _USAGE}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _chunk(value: object) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _delta(text: str, *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return _chunk({**_HEAD, "object": "chat.completion.chunk", "choices": [choice]})


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END = (
    _delta("", finish="stop")
    + _chunk({**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE})
    + _chunk(b"[DONE]")
    + b"0\r\n\r\n"
)
_WHOLE = _whole()
_STREAM = _STREAM_HEAD + b"".join(_delta("word ") for _ in range(20)) + _END


@final
class Answers(asyncio.Protocol):
    """One connection."""

    def __init__(self, waiting: "set[Answers]") -> None:
        self._waiting, self._bytes = waiting, bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A piece of a request."""
        self._bytes += data
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0 or self._transport is None:
            return
        head = bytes(self._bytes[:end]).lower()
        place = head.find(b"content-length:")
        length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(self._bytes) < end + 4 + length:
            return
        body = bytes(self._bytes[end + 4 : end + 4 + length])
        del self._bytes[: end + 4 + length]
        self._answer(head, body, self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has left."""
        del error
        self._waiting.discard(self)

    def _answer(self, head: bytes, body: bytes, transport: asyncio.Transport) -> None:
        if head.startswith(b"get"):
            for answer in list(self._waiting):
                answer.finish()
            transport.write(_WHOLE)
        elif b"hold" in body:
            self._waiting.add(self)
            transport.write(_STREAM_HEAD + _delta("word "))
        else:
            transport.write(_STREAM if b'"stream"' in body else _WHOLE)

    def finish(self) -> None:
        """End an answer that waits."""
        self._waiting.discard(self)
        if self._transport is not None:
            self._transport.write(_END)


async def serve() -> None:
    """Answer until the process is ended; the port is the first line of standard output."""
    waiting: set[Answers] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answers(waiting), "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
