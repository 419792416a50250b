"""Malformed requests against a whole gateway: is every one answered, with what, and what leaks?

The gateway runs as its user runs it, with clients' keys, in front of a target that quotes its own
key wherever it can. Afterwards its replies, log, receipts, metrics and the page's numbers are
searched for that key, the client's, and the prompt.

    python -m benchmarks.fuzz [--count 10000] [--seed 0]
"""

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks._attack import UPSTREAM_KEY, LeakyTarget, attack
from benchmarks._malformed import KEY, PROMPT, WRONG_KEY, Case, cases, good
from benchmarks._system import machine
from benchmarks.gateway import COMMAND, RESULTS, await_port, free_port, make_router, process
from prefill_router import files
from prefill_router.targets import Pool, Provider, read_pool, write_pool
from prefill_router_gateway.guard import ClientKey
from prefill_router_gateway.guard.key_file import add_key, digest

SECRETS = (UPSTREAM_KEY, KEY, WRONG_KEY, PROMPT)
PAGES = ("overview", "decisions?limit=200", "spend", "curve", "targets", "drift")


@contextmanager
def leaky_target() -> Iterator[tuple[LeakyTarget, int]]:
    """The target in a thread, and its port."""
    target, ready = LeakyTarget(), threading.Event()
    handles: list[Any] = []

    async def serve() -> None:
        server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
        stop = asyncio.Event()
        handles.extend((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop))
        ready.set()
        async with server:
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield target, handles[0]
    finally:
        handles[1].call_soon_threadsafe(handles[2].set)
        thread.join()


def write_files(folder: Path, upstream: int) -> tuple[Path, Path]:
    """A router and a pool whose targets need a key; settings and a client's key beside them."""
    router, place = make_router(folder, upstream)
    url = f"http://127.0.0.1:{upstream}/v1"
    provider = Provider(name="p", base_url=url, dialect="vllm", api_key_env="FUZZED_KEY")
    targets = tuple(
        replace(target, base_url=None, provider="p", accepts=("tools",))
        for target in read_pool(place)
    )
    write_pool(Pool(targets, None, (provider,)), place)
    add_key(folder / "keys.yaml", ClientKey(name="tester", sha256=digest(KEY), admin=True))
    failures = {"backoff_seconds": 0.0, "breaker_failures": 1_000_000}
    settings = {"logs": {"level": "debug"}, "failures": failures}
    (folder / "gateway.yaml").write_text(yaml.safe_dump(settings))
    return router, place


def collect_texts(port: int, folder: Path) -> dict[str, str]:
    """Everything that the gateway says or keeps."""
    texts = {
        name: _read(f"http://127.0.0.1:{port}{name}")
        for name in ("/metrics", "/v1/models", *(f"/page/api/{page}" for page in PAGES))
    }
    paths = {path.name: path for path in folder.glob("*.sqlite*")} | {"log": folder / "gateway.log"}
    return texts | {name: path.read_bytes().decode("latin-1") for name, path in paths.items()}


def leaks(texts: dict[str, str]) -> list[str]:
    """Where a secret is found."""
    return [
        f"{secret} in {name}"
        for name, text in texts.items()
        for secret in SECRETS
        if secret in text
    ]


def _read(url: str) -> str:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        text: str = reply.read().decode()
    return text


def main() -> None:
    """Attack, print, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    os.environ["FUZZED_KEY"] = UPSTREAM_KEY
    with tempfile.TemporaryDirectory() as temporary, leaky_target() as (target, upstream):
        folder, port = Path(temporary), free_port()
        router, pool = write_files(folder, upstream)
        serve = f"{COMMAND} serve {router} --pool {pool} --port {port} --keys {folder}/keys.yaml"
        more = f"--config {folder}/gateway.yaml --receipts sqlite:///{folder}/r.sqlite"
        line = f"exec {serve} {more} 2> {folder}/gateway.log"
        with process("sh", "-c", line, core=0):
            await_port(port)
            began = time.perf_counter()
            attacks = cases(chosen.count, seed=chosen.seed)
            replies = asyncio.run(attack(port, attacks, secrets=SECRETS))
            seconds = time.perf_counter() - began
            target.is_kind = True
            last = [Case("good", good(p)) for p in ("/v1/route", "/v1/chat/completions")]
            after = asyncio.run(attack(port, last, secrets=SECRETS, connections=1))
            texts = collect_texts(port, folder)
        result = {
            "requests": chosen.count,
            "seed": chosen.seed,
            "seconds": seconds,
            "kinds": dict(replies.kinds.most_common()),
            "statuses": {str(status): n for status, n in sorted(replies.statuses.items())},
            "heard by targets": target.requests,
            "wrong": replies.wrong,
            "leaks": leaks(texts),
            "tracebacks in the log": texts["log"].count("Traceback"),
            "good requests afterwards": {str(s): n for s, n in after.statuses.items()},
        }
    files.write_json(RESULTS / "fuzz.json", {"machine": machine(), **result})
    print(files.as_json(result))
    if (
        result["wrong"]
        or result["leaks"]
        or result["tracebacks in the log"]
        or set(after.statuses) != {200}
    ):
        sys.exit(1)


if __name__ == "__main__":
    main()
