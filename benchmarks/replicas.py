"""What state that replicas share adds to a request, with the database on the same machine.

The same gateway runs twice, alone and with shared state (PostgreSQL with its defaults, durable),
and is asked in turns: single requests, turns of conversations, and requests of a key with limits.
Both keep their receipts in SQLite. One client asks again at once; then 16 clients 100 times a
second together, and as fast as they can. Where other programs use the processor too, every step
takes several times as long; the tenth percentile is the least disturbed.

    python -m benchmarks.replicas [--seconds 5] [--rounds 6] [--loads one paced full]
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from benchmarks._asking import Timings
from benchmarks._system import machine
from benchmarks.gateway import RESULTS, TEXT, begin, figures, in_turns, serve
from packages.gateway.tests.receipts.postgres_server import postgres_server
from prefill_router import files
from prefill_router_gateway.guard import digest

CLIENTS, PACED = 16, 100.0
NEEDED_MS = 2.0
SECRETS = {"free": "pr-free", "limited": "pr-limited"}
LIMITS = {"requests_per_minute": 10_000_000, "concurrent": 1000, "dollars_per_day": 1000.0}


def request(key: str, *, further_turn: bool) -> bytes:
    """A routed chat, whole; a further turn of a conversation is looked up."""
    turns = [{"role": "user", "content": TEXT}]
    if further_turn:
        turns += [{"role": "assistant", "content": "25."}, {"role": "user", "content": "Sure?"}]
    body = json.dumps({"model": "auto", "messages": turns}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"authorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


WORK = {
    "single requests": request(SECRETS["free"], further_turn=False),
    "turns of conversations": request(SECRETS["free"], further_turn=True),
    "turns, and a key with limits": request(SECRETS["limited"], further_turn=True),
}


LOADS = {"one": (1, 0.0), "paced": (CLIENTS, CLIENTS / PACED), "full": (CLIENTS, 0.0)}
"""How many clients, and how often each begins a request, in seconds."""


def tenth(rounds: Sequence[Timings]) -> float:
    """The tenth percentile of all answers' times, in milliseconds."""
    every = sorted(seconds for part in rounds for seconds in part.seconds)
    return 1e3 * every[len(every) // 10]


def compare(
    ports: dict[str, int], loads: Sequence[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Every kind of request under every load, in turns."""
    result: dict[str, Any] = {}
    for work, message in WORK.items():
        for load in loads:
            clients, every = LOADS[load]
            requests = {name: (port, message) for name, port in ports.items()}
            timings = in_turns(requests, rounds, clients=clients, seconds=seconds, every=every)
            by_way: dict[str, Any] = {name: figures(each) for name, each in timings.items()}
            medians = [
                1e3 * (statistics.median(shared.seconds) - statistics.median(alone.seconds))
                for alone, shared in zip(timings["alone"], timings["shared"], strict=True)
            ]
            by_way["added_ms"] = {
                "median": by_way["shared"]["median_ms"] - by_way["alone"]["median_ms"],
                "tenth percentile": tenth(timings["shared"]) - tenth(timings["alone"]),
                "least and most of a round": [min(medians), max(medians)],
            }
            rates = [by_way[name]["requests_per_second"] for name in ("shared", "alone")]
            by_way["throughput"] = rates[0] / rates[1]
            result[f"{work}, {load}"] = by_way
            print(f"{work}, {load}: {by_way}", flush=True)
    return result


def main() -> None:
    """Measure, print, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    chosen = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as temporary,
        postgres_server(durable=True) as database,
        ExitStack() as stack,
    ):
        folder = Path(temporary)
        _, router, pool = begin(stack, folder)
        keys = [
            {"name": "free", "sha256": digest(SECRETS["free"])},
            {"name": "limited", "sha256": digest(SECRETS["limited"]), **LIMITS},
        ]
        (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
        ports = {}
        for name, shared in (("alone", {}), ("shared", {"url": database.url})):
            settings = {
                "budgets": [{"dollars": 1000.0, "per": "day"}],
                "keys": str(folder / "keys.yaml"),
                "shared": shared,
            }
            ports[name], _ = serve(stack, router, pool, name=name, settings=settings)
        loads = compare(ports, chosen.loads, chosen.rounds, chosen.seconds)
    added = {load: by_way["added_ms"] for load, by_way in loads.items()}
    rounds = {"rounds": chosen.rounds, "seconds": chosen.seconds, "load": os.getloadavg()[0]}
    result = {
        "machine": machine(),
        **rounds,
        "needed_ms": NEEDED_MS,
        "added_ms": added,
        "loads": loads,
    }
    files.write_json(RESULTS / "replicas.json", result)
    print(files.as_json(added))


if __name__ == "__main__":
    main()
