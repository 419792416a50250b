"""Clients on raw sockets, light enough not to be what is measured."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import final


@final
@dataclass
class Timings:
    """What clients measured.

    Attributes:
        seconds: Of each answer, from the request's first byte to the answer's last.
        failed: Answers with another status than 200.
        wall: Of all together.
    """

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    wall: float = 0.0


def request(model: str, text: str, *, stream: bool) -> bytes:
    """A chat request, whole."""
    turns = [
        {"role": "system", "content": "You answer in one sentence. " * 8},
        {"role": "user", "content": text},
    ]
    value = {
        "model": model,
        "messages": turns,
        "temperature": 0,
        **({"stream": True} if stream else {}),
    }
    body = json.dumps(value).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    return head % len(body) + body


async def read_answer(reader: asyncio.StreamReader) -> bool:
    """Read one answer to its end; whether its status was 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    place = head.find(b"content-length:")
    if place >= 0:
        await reader.readexactly(int(head[place + 15 :].split(b"\r\n", 1)[0]))
    elif b"chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    return b" 200 " in head[:16]


async def ask_many(
    port: int, message: bytes, *, clients: int, seconds: float, every: float = 0.0
) -> Timings:
    """Ask again and again with several clients.

    Args:
        port: On loopback.
        message: The request of each.
        clients: How many.
        seconds: How long.
        every: Seconds between the requests of a client; 0 asks again at once.
    """
    timings = Timings()
    began = time.perf_counter()

    async def ask_repeatedly(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due = began + every * number / clients
        try:
            while (now := time.perf_counter()) < began + seconds:
                if every and due > now:
                    await asyncio.sleep(due - now)
                due += every
                start = time.perf_counter()
                writer.write(message)
                good = await read_answer(reader)
                timings.seconds.append(time.perf_counter() - start)
                timings.failed += not good
        finally:
            writer.close()

    await asyncio.gather(*(ask_repeatedly(n) for n in range(clients)))
    timings.wall = time.perf_counter() - began
    return timings
