"""The least that a client of an OpenAI-compatible endpoint can do: bytes out, bytes in."""

import asyncio
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from prefill_router.data import prompt_text
from prefill_router.endpoints.request_body import request_messages, request_parameters
from prefill_router.runs import Task
from prefill_router.targets import Pool

_END = b"0\r\n\r\n"


def requests_of(pool: Pool, tasks: Iterable[Task]) -> list[bytes]:
    """The requests that `collect` sends, in its order, ready to be written."""
    requests = []
    for task in tasks:
        for target in pool:
            dialect = pool.provider_of(target.name).dialect
            messages = request_messages(target, dialect, task.query.prompt)
            if not prompt_text(task.query.prompt):
                raise ValueError("a task without a prompt")
            body = json.dumps({"messages": messages, **request_parameters(target, dialect)})
            requests.append(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body.encode()), body.encode())
            )
    return requests


async def send_all(base_url: str, requests: list[bytes], in_flight: int) -> None:
    """Send every request, `in_flight` at once; read each answer to its end, and don't parse it."""
    place = urlsplit(base_url)
    left = iter(requests)

    async def worker() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for request in left:
            writer.write(request)
            tail = b""
            while not tail.endswith(_END):
                piece = await reader.read(65536)
                if not piece:
                    raise ConnectionError("the server closed a connection")
                tail = (tail + piece)[-len(_END) :]
        writer.close()

    await asyncio.gather(*(worker() for _ in range(in_flight)))
