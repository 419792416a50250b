"""Targets that fail, stall, truncate and recover, in turns, and count what they were asked.

Each listens on a port of its own. After a while of good answers it goes through its troubles, each
for a few seconds; the targets do so at different times. Ports are printed on standard output. GET
/counts at the first port gives the counts of all targets, and what they heard of each request, by
the number in its field `user`.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any, final

TROUBLES = ("fail", "limited", "stall", "cut", "truncate", "refuse", "slow", "garbage")
BAD_SECONDS = 3.0
_STALL_SECONDS = 45.0  # longer than any time limit of the gateway
_WORDS = 12


def _json_reply(status: str, value: object, *, more: bytes = b"") -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n"
    return head % (status.encode(), len(body), more) + body


def _chunk(value: object) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@final
class SoakTarget:
    """One target.

    Attributes:
        name: Its name.
        counts: Requests, by mood, and whole answers; requests that it hung up on.
    """

    def __init__(self, name: str, *, good: float, share: float, until: float) -> None:
        self.name, self.counts = name, Counter[str]()
        self._good, self._every, self._until = good, good + BAD_SECONDS, until
        self._offset = self._every * share
        self._began = time.monotonic()

    def mood(self) -> str:
        """What is wrong just now; `good` where nothing is."""
        now = time.monotonic() - self._began
        if now > self._until:
            return "good"
        turn, place = divmod(now + self._offset, self._every)
        return "good" if place < self._good else TROUBLES[int(turn) % len(TROUBLES)]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes over one connection."""
        try:
            goes_on = await self._answer_next(reader, writer, first=True)
            while goes_on:
                goes_on = await self._answer_next(reader, writer, first=False)
        except (OSError, asyncio.IncompleteReadError):
            self.counts["left"] += 1
        finally:
            writer.close()

    async def _answer_next(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, first: bool
    ) -> bool:
        if self.mood() == "refuse":
            if first and await reader.read(1):
                self.counts["unread"] += 1
            return False
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get /counts"):
            writer.write(_json_reply("200 OK", {"counts": EVERY, "heard": HEARD}))
            return True
        place = head.find(b"content-length:")
        body = json.loads(await reader.readexactly(int(head[place + 15 :].split(b"\r\n", 1)[0])))
        self.counts["requests"] += 1
        mood = self.mood()
        self.counts[mood] += 1
        heard = [self.name, mood, None]
        HEARD.setdefault(body["user"], []).append(heard)
        if mood == "fail":
            writer.write(_json_reply("503 Service Unavailable", {"error": {"message": "busy"}}))
        elif mood == "limited":
            refusal = _json_reply(
                "429 Too Many Requests", {"error": {"message": "slow"}}, more=b"retry-after: 1\r\n"
            )
            writer.write(refusal)
        elif body.get("stream"):
            return await self._send_stream(body, writer, mood, heard)
        else:
            return await self._send_whole(body, writer, mood, heard)
        return True

    def _usage(self, body: Any) -> dict[str, int]:
        given = len(json.dumps(body["messages"])) // 4
        return {"prompt_tokens": given, "completion_tokens": _WORDS, "total_tokens": given + _WORDS}

    def _count_answer(self, usage: dict[str, int], heard: list[Any]) -> None:
        self.counts["answers"] += 1
        heard[2] = [usage["prompt_tokens"], usage["completion_tokens"]]

    async def _send_whole(
        self, body: Any, writer: asyncio.StreamWriter, mood: str, heard: list[Any]
    ) -> bool:
        usage = self._usage(body)
        message = {"role": "assistant", "content": "word " * _WORDS}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        value = {"id": "c", "object": "chat.completion", "model": self.name, "choices": [choice]}
        reply = _json_reply("200 OK", {**value, "usage": usage})
        if mood == "stall":
            await asyncio.sleep(_STALL_SECONDS)
            return False
        if mood in ("cut", "truncate", "garbage"):
            writer.write(reply[: len(reply) // 2])
            return False
        if mood == "slow":
            await asyncio.sleep(0.5)
        self._count_answer(usage, heard)
        writer.write(reply)
        await writer.drain()
        return True

    async def _send_stream(
        self, body: Any, writer: asyncio.StreamWriter, mood: str, heard: list[Any]
    ) -> bool:
        head = {"id": "c", "object": "chat.completion.chunk", "model": self.name}
        if mood == "stall":
            await asyncio.sleep(_STALL_SECONDS)
            return False
        writer.write(_STREAM)
        for number in range(_WORDS):
            choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
            writer.write(_chunk({**head, "choices": [choice]}))
            await writer.drain()
            if number == _WORDS // 2 and mood in ("cut", "truncate", "garbage"):
                end = {"truncate": b"0\r\n\r\n", "garbage": b"zz\r\n"}.get(mood, b"")
                writer.write(end)
                return False
            await asyncio.sleep(0.1 if mood == "slow" else 0.002)
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        writer.write(_chunk({**head, "choices": [last]}))
        usage = self._usage(body)
        writer.write(_chunk({**head, "choices": [], "usage": usage}))
        self._count_answer(usage, heard)
        writer.write(_chunk(b"[DONE]") + b"0\r\n\r\n")
        await writer.drain()
        return True


EVERY: dict[str, Counter[str]] = {}
HEARD: dict[str, list[list[Any]]] = {}
"""By a request's number, each target that heard it: its name, its mood, the tokens of its answer.
"""


async def serve(count: int, good: float, until: float) -> None:
    """Serve until the process is ended."""
    ports = []
    for number in range(count):
        name = f"target-{number}"
        target = SoakTarget(name, good=good, share=number / count, until=until)
        EVERY[name] = target.counts
        server = await asyncio.start_server(target.answer, "127.0.0.1", 0, backlog=2048)
        ports.append(server.sockets[0].getsockname()[1])
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=3)
    options.add_argument("--good-seconds", type=float, default=12.0)
    options.add_argument("--until", type=float, default=1e9, help="all is good from then on, s")
    chosen = options.parse_args()
    asyncio.run(serve(chosen.count, chosen.good_seconds, chosen.until))
