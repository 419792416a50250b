"""What an answer costs the client in processor time, against the openai SDK used plainly.

A server in another process sends canned streams; 64 calls are in flight. The SDK's plain way makes
an object of every chunk; its raw way reads lines and parses their JSON.

    python -m benchmarks.asking [--rounds 5] [--answers 320]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import openai

from benchmarks._system import machine
from prefill_router import files
from prefill_router.endpoints import Upstream
from prefill_router.targets import Pool, Provider, RequestOptions, Target

RESULTS = Path(__file__).parent / "results"
IN_FLIGHT = 64
TOKENS = {"short": 10, "long": 200}
NEEDED_TIMES = 2.0
PROMPT = "What is the sum of the first ten odd numbers?"
Way = Callable[[int], Awaitable[None]]


def chunks(tokens: int) -> list[bytes]:
    """A stream of this many tokens, a chunk each, as a vLLM server sends it."""
    head: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
    }
    deltas: list[dict[str, Any]] = [{"content": "word "} for _ in range(tokens)]
    choices: list[Any] = [[{"index": 0, "delta": d, "finish_reason": None}] for d in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": tokens + 12}
    events: list[dict[str, Any]] = [{**head, "choices": c} for c in choices] + [
        {**head, "choices": [], "usage": usage}
    ]
    lines = [b"data: " + json.dumps(s).encode() + b"\n\n" for s in events] + [b"data: [DONE]\n\n"]
    return [b"%x\r\n%s\r\n" % (len(t), t) for t in lines] + [b"0\r\n\r\n"]


async def serve(ready: Connection) -> None:
    """Answer for ever; the model's name says how long answers are."""
    bodies = {name: chunks(tokens) for name, tokens in TOKENS.items()}
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request_head = await reader.readuntil(b"\r\n\r\n")
                length = int(request_head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                writer.write(head)
                for piece in bodies[json.loads(body)["model"]]:
                    writer.write(piece)
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4 * IN_FLIGHT)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def run_server(ready: Connection) -> None:
    """The other process."""
    asyncio.run(serve(ready))


def request(model: str) -> dict[str, Any]:
    """The fields of a call."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 500,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def plainly(client: openai.AsyncOpenAI, model: str) -> str:
    """As the SDK's documentation has it."""
    stream = await client.chat.completions.create(**request(model))
    texts = []
    async for chunk in stream:
        texts += [c.delta.content or "" for c in chunk.choices]
    return "".join(texts)


async def by_lines(client: openai.AsyncOpenAI, model: str) -> str:
    """The SDK's raw response, read by lines."""
    texts = []
    create = client.chat.completions.with_streaming_response.create
    async with create(**request(model)) as response:
        async for line in response.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                texts += [c["delta"].get("content") or "" for c in choices]
    return "".join(texts)


async def milliseconds(call: Callable[[], Awaitable[str]], answers: int, tokens: int) -> float:
    """Processor time of one answer, in this process."""
    expected = "word " * tokens

    # each answer is asked for by one of the workers, also where there are fewer than workers
    counts = [len(range(place, answers, IN_FLIGHT)) for place in range(IN_FLIGHT)]

    async def worker(count: int) -> None:
        for _ in range(count):
            if await call() != expected:
                raise RuntimeError("an answer isn't what was sent")

    await asyncio.gather(*(worker(1) for _ in range(IN_FLIGHT)))
    begin = time.process_time()
    await asyncio.gather(*(worker(count) for count in counts))
    return (time.process_time() - begin) / answers * 1000


async def measure(port: int, model: str, rounds: int, answers: int) -> dict[str, Any]:
    """The least of all rounds of each way; they take turns."""
    url = f"http://127.0.0.1:{port}/v1"
    provider = Provider(name="here", base_url=url, dialect="vllm", concurrency=IN_FLIGHT)
    target = Target(name=model, provider="here", request=RequestOptions(max_tokens=500))
    times: dict[str, list[float]] = {}
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    async with client, Upstream(Pool((target,), providers=(provider,))) as upstream:

        async def ours() -> str:
            return (await upstream.ask(model, PROMPT)).text

        ways: dict[str, Callable[[], Awaitable[str]]] = {
            "sdk": lambda: plainly(client, model),
            "sdk_raw": lambda: by_lines(client, model),
            "ours": ours,
        }
        for _ in range(rounds):
            for name, way in ways.items():
                milliseconds_spent = await milliseconds(way, answers, TOKENS[model])
                times.setdefault(name, []).append(milliseconds_spent)
    least = {name: round(min(taken), 3) for name, taken in times.items()}
    return {
        "tokens": TOKENS[model],
        "client_milliseconds": least,
        "times_as_cheap_as_sdk": round(least["sdk"] / least["ours"], 2),
        "times_as_cheap_as_sdk_raw": round(least["sdk_raw"] / least["ours"], 2),
    }


def main() -> None:
    """Measure, print, and write benchmarks/results/asking.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=320)
    options = parser.parse_args()
    if min(options.rounds, options.answers) < 1:
        parser.error("--rounds and --answers must be 1 or more")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=run_server, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    result: dict[str, Any] = {"what": "processor time of the client for one answer, 64 in flight"}
    for model in TOKENS:
        figures = asyncio.run(measure(port, model, options.rounds, options.answers))
        met = figures["times_as_cheap_as_sdk"] >= NEEDED_TIMES
        result[model] = {**figures, "needed": NEEDED_TIMES, "met": met}
    server.terminate()
    result["machine"] = {
        **machine(),
        "openai": openai.__version__,
        "load_average": round(os.getloadavg()[0], 2),
    }
    files.write_json(RESULTS / "asking.json", result)
    print(result)


if __name__ == "__main__":
    main()
