"""What clients wait for while a share of their requests is kept to learn from.

Three gateways differ in `learning.share` alone: 0, 0.1 and 1. They run in processes of their own on
one core, and are asked in turns, 100 times a second by 16 clients, for whole answers and streams.
The ratios are of milliseconds of an answer, over those of the gateway that keeps nothing.

    python -m benchmarks.learning [--seconds 4] [--rounds 12]
"""

import argparse
import asyncio
import os
import sqlite3
import statistics
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks._asking import Seen, ask_many, request
from benchmarks._system import machine
from benchmarks.gateway import RESULTS, TEXT, begin, figures, serve
from prefill_router import files

SHARES = (0.0, 0.1, 1.0)
CLIENTS, PACED = 16, 100.0
MOST_P99 = 1.1


def asked(
    ports: dict[float, int], *, stream: bool, rounds: int, seconds: float
) -> list[list[Seen]]:
    """Rounds in which every gateway is asked once, in an order that turns; the first warms up."""
    sent, found = request("auto", TEXT, stream=stream), []
    for turn in range(rounds + 1):
        seen: dict[float, Seen] = {}
        for share in SHARES[turn % 3 :] + SHARES[: turn % 3]:
            every = CLIENTS / PACED
            asking = ask_many(ports[share], sent, clients=CLIENTS, seconds=seconds, every=every)
            seen[share] = asyncio.run(asking)
        found.append([seen[share] for share in SHARES])
    return found[1:]


def compared(found: list[list[Seen]]) -> dict[str, object]:
    """Figures of each share, and ratios to the first: of all rounds together, and their median."""
    told = {share: figures([one[i] for one in found]) for i, share in enumerate(SHARES)}
    rounds = [[figures([seen]) for seen in one] for one in found]
    ratios = {
        str(share): {name: told[share][name] / told[0.0][name] for name in ("median_ms", "p99_ms")}
        | {
            f"{name}, median round": statistics.median(r[i][name] / r[0][name] for r in rounds)
            for name in ("median_ms", "p99_ms")
        }
        for i, share in enumerate(SHARES)
        if share
    }
    return {"figures": {str(share): value for share, value in told.items()}, "ratios": ratios}


def kept(file: Path) -> int:
    """The requests that a gateway kept."""
    with closing(sqlite3.connect(file)) as database:
        (count,) = database.execute("SELECT count(*) FROM receipt_samples").fetchone()
    return int(count)


def main() -> None:
    """Measure, print, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=12)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        _, router, pool = begin(stack, folder)
        ports = {}
        for share in SHARES:
            settings = {"learning": {"share": share, "keep_texts": True}}
            ports[share], _ = serve(stack, router, pool, name=str(share), settings=settings)
        os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
        loads = {
            name: compared(
                asked(ports, stream=stream, rounds=chosen.rounds, seconds=chosen.seconds)
            )
            for name, stream in (("whole", False), ("stream", True))
        }
        samples = {str(share): kept(folder / f"{share}.sqlite") for share in SHARES if share}
    result = {"machine": machine(), "needed_p99": MOST_P99, "loads": loads, "kept": samples}
    files.write_json(RESULTS / "learning.json", result)
    print(files.as_json(result))


if __name__ == "__main__":
    main()
