"""What clients wait for while their requests are kept to learn from, and asked of other targets.

Gateways differ in `learning.share` alone: 0, 0 again (what chance does), 0.1, 1, and 0.1 with a
learner beside it, which asks and judges what this gateway keeps every second, and is stopped while
others are asked. They run in processes of their own on one core, with the learner, and are asked in
turns, 100 times a second by 16 clients, for whole answers and streams. Clients, their target, and
the targets that the learner asks, all of which are elsewhere in production, have the other core.
The ratios are of milliseconds of an answer, over those of the gateway that keeps nothing.

    python -m benchmarks.learning [--seconds 4] [--rounds 12]
"""

import argparse
import asyncio
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks._asking import Timings, ask_many, request
from benchmarks._system import machine
from benchmarks.gateway import RESULTS, TEXT, begin, figures, process, serve
from prefill_router import files

LEARNING = "0.1, asked of others"
SHARES = {"0.0": 0.0, "0.0 again": 0.0, "0.1": 0.1, "1.0": 1.0, LEARNING: 0.1}
CLIENTS, PACED = 16, 100.0
MOST_P99 = 1.1


def ask_in_turns(
    ports: dict[str, int],
    learner: "subprocess.Popen[str]",
    *,
    stream: bool,
    rounds: int,
    seconds: float,
) -> list[dict[str, Timings]]:
    """Rounds in which every gateway is asked once, in an order that turns; the first warms up."""
    message, by_round, names = request("auto", TEXT, stream=stream), [], list(ports)
    for turn in range(rounds + 1):
        timings, first = {}, turn % len(names)
        for name in names[first:] + names[:first]:
            learner.send_signal(signal.SIGCONT if name == LEARNING else signal.SIGSTOP)
            every = CLIENTS / PACED
            asking = ask_many(ports[name], message, clients=CLIENTS, seconds=seconds, every=every)
            timings[name] = asyncio.run(asking)
        by_round.append(timings)
    return by_round[1:]


def compare(by_round: list[dict[str, Timings]]) -> dict[str, object]:
    """Figures of each gateway, and ratios to the first: of all rounds, and their median."""
    by_name = {name: figures([timings[name] for timings in by_round]) for name in SHARES}
    rounds = [{name: figures([part]) for name, part in timings.items()} for timings in by_round]
    base, *others = SHARES
    ratios = {
        name: {what: by_name[name][what] / by_name[base][what] for what in ("median_ms", "p99_ms")}
        | {
            f"{what}, median round": statistics.median(
                r[name][what] / r[base][what] for r in rounds
            )
            for what in ("median_ms", "p99_ms")
        }
        for name in others
    }
    return {"figures": by_name, "ratios": ratios}


def count(file: Path, table: str) -> int:
    """The rows of a table of a gateway's receipts."""
    with closing(sqlite3.connect(file)) as database:
        (found,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(found)


def begin_learner(
    stack: ExitStack, receipts: Path, pool: Path, folder: Path
) -> "subprocess.Popen[str]":
    """Start a learner on the gateways' core, what it asks elsewhere; it has done a round."""
    side = (sys.executable, "-m", "benchmarks._side_targets", pool)
    targets = stack.enter_context(process(*side, core=1))
    url = targets.stdout.readline().strip() if targets.stdout else ""
    line = (sys.executable, "-m", "benchmarks._learner", f"sqlite:///{receipts}", pool, folder, url)
    learner = stack.enter_context(process(*line, core=0))
    stack.callback(learner.kill)  # it may be stopped, and would not end
    if not (learner.stdout and learner.stdout.readline()):
        raise RuntimeError("the learner ended")
    return learner


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
        for number, (name, share) in enumerate(SHARES.items()):
            settings = {"learning": {"share": share, "keep_texts": True}}
            ports[name], _ = serve(stack, router, pool, name=str(number), settings=settings)
        receipts = {name: folder / f"{number}.sqlite" for number, name in enumerate(SHARES)}
        learner = begin_learner(stack, receipts[LEARNING], pool, folder / "versions")
        os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
        loads = {
            name: compare(
                ask_in_turns(
                    ports, learner, stream=stream, rounds=chosen.rounds, seconds=chosen.seconds
                )
            )
            for name, stream in (("whole", False), ("stream", True))
        }
        samples = {n: count(receipts[n], "receipt_samples") for n, s in SHARES.items() if s}
        sides = count(receipts[LEARNING], "receipt_side_answers")
        result = {
            "machine": machine(),
            "needed_p99": MOST_P99,
            "loads": loads,
            "kept": samples,
            "side answers": sides,
        }
    files.write_json(RESULTS / "learning.json", result)
    print(files.as_json(result))


if __name__ == "__main__":
    main()
