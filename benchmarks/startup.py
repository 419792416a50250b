"""What it takes to begin: the help of every command, and one decision with the packaged encoder.

Processor time (user and system) of whole processes, the least of several: what other programs do on
the machine only ever adds to it. Compiled modules are kept between the rounds, as an installation
has them.

    python -m benchmarks.startup [--rounds 5]
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._networks import RESULTS
from prefill_router import files
from prefill_router.cli.commands import all_commands
from prefill_router.data import write_dataset
from prefill_router.testing import make_routing_dataset

COMMAND = "from prefill_router.cli import main; main()"
PYTHON = "from prefill_router import Router; Router.load({!r}).route('Why?', lam=0.5)"
MOST = {"help": 0.3, "help_of_any_command": 0.3, "route": 2.5, "python": 2.5}
"""Seconds of processor time that were asked for."""


def spent(*arguments: object, compiled: Path, **environment: str) -> float:
    """Seconds of processor time of a process that keeps its compiled modules in a folder.

    Args:
        arguments: Those of Python.
        compiled: The folder.
        environment: What is added to this process's environment.
    """
    inherited = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    before = os.times()
    subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=True,
        capture_output=True,
        env={**inherited, "PYTHONPYCACHEPREFIX": str(compiled), **environment},
    )
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


def helps_of_all() -> list[list[str]]:
    """The words that ask for the help of every command."""
    helps = []
    for name, entry in all_commands()[0].items():
        helps += [[name, below, "--help"] for below in entry.commands] or [[name, "--help"]]
    return helps


def make_router(folder: Path) -> Path:
    """The default router on a small dataset."""
    keep = partial(spent, compiled=folder)
    write_dataset(make_routing_dataset(queries=120), folder / "answers")
    answers, states = folder / "answers", folder / "states"
    keep("-c", COMMAND, "encode", answers, "--encoder", "minilm", "--out", states)
    fit = ("fit", answers, "--store", states, "--dim", 20, "--out", folder / "router")
    keep("-c", COMMAND, *fit)
    return folder / "router"


def main() -> None:
    """Measure, print, and write benchmarks/results/startup.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        router = make_router(Path(folder))
        measured: dict[str, tuple[object, ...]] = {
            "help": ("-c", COMMAND, "--help"),
            "route": ("-c", COMMAND, "route", router, "Prove that 2 is irrational."),
            "python": ("-c", PYTHON.format(str(router))),
            "torch": ("-c", "import torch"),
        }
        helps = {" ".join(words): ("-c", COMMAND, *words) for words in helps_of_all()}
        every = {**measured, **helps}
        seconds: dict[str, list[float]] = {name: [] for name in every}
        for _ in range(rounds + 1):
            for name, arguments in every.items():
                seconds[name].append(spent(*arguments, compiled=Path(folder) / "compiled"))
    all_least = {name: min(times[1:]) for name, times in seconds.items()}
    slowest = max(helps, key=all_least.__getitem__)
    least = {name: all_least[name] for name in measured}
    least["help_of_any_command"] = all_least[slowest]
    result: dict[str, Any] = {
        "what": "processor seconds of a whole process, the least of the rounds",
        "rounds": rounds,
        "seconds": {name: round(time, 3) for name, time in least.items()},
        "times_torch": {name: round(least[name] / least["torch"], 2) for name in MOST},
        "slowest_help": slowest,
        "needed": MOST,
        "met": all(least[name] < most for name, most in MOST.items()),
        "machine": {
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "system": platform.platform(),
        },
    }
    files.write_json(RESULTS / "startup.json", result)
    sys.stdout.write(f"{result}\n")


if __name__ == "__main__":
    main()
