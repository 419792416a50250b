"""Time and memory of large data, and how they grow with the number of queries.

    python -m benchmarks.large [--folder FOLDER] [--largest 1000000] [--prompts 10000000]

`encode` reads prompts with an encoder that costs next to nothing, and is started again when it is
done, which takes what a restart takes. `fit`, `evaluate`, `doctor` and `compare` run as commands on
14 targets, with a small network, few epochs and 100 resamples, so that what grows is the handling
of the data. The exponent is the slope between the two largest sizes, in logarithms: 1 is linear.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._large_world import LATENTS, TARGETS, LatentEncoder, write_world
from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import ActivationStore, Site
from prefill_router.data import QueryFile, read_dataset
from prefill_router.encoders import plan_encoding, run_encoding
from prefill_router.fitting import FitConfig, fit_router, recipe_from_dict
from prefill_router.reporting import BLUE, QUIET, new_figure, style, write_figure

RESULT = Path(__file__).parent / "results" / "large.json"
SIZES = (10_000, 100_000, 1_000_000)
NARROW, WIDE = 8, 128
"""The width of the states: where only prompts are counted, and where a router is fitted."""
RESAMPLES = 100
NETWORK: dict[str, Any] = {
    "predictor": {"kind": "shared_trunk", "seeds": 1, "keep": 1, "max_epochs": 2}
}
ROUTERS = {
    f"dim {dim}": NETWORK | {"features": {"kind": "prefill", "dim": dim}, "cost": "median"}
    for dim in (100, 50)
}
COMMANDS = ("fit", "evaluate", "doctor", "compare")


def encode(folder: Path, width: int) -> None:
    """Encode a folder's prompts; say how long planning took, from the start of the process."""
    encoder = LatentEncoder(hidden_size=width)
    sites = [Site(4, "mean")] if width == NARROW else [Site(4, "mean"), Site(4, "last")]
    queries = QueryFile.open(folder / "data")
    cache = folder / "cache"
    plan = plan_encoding(queries, encoder, folder / "states", sites=sites, cache=cache)
    spent = time.clock_gettime(time.CLOCK_BOOTTIME) - _started()
    print(json.dumps({"planned": round(spent, 2), "left": plan.left}), flush=True)
    run_encoding(plan, encoder)


def fit(folder: Path) -> None:
    """Fit a router as the command does, but with fewer resamples for its card."""
    config = FitConfig(test=0.15, recipe=recipe_from_dict(NETWORK), resamples=RESAMPLES)
    dataset, store = read_dataset(folder / "data"), ActivationStore.open(folder / "states")
    fit_router(dataset, [store], config=config).router.save(folder / "router")


def _started() -> float:
    """When this process started, in seconds since the machine did."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(arguments: Sequence[str | Path], *, codes: Sequence[int] = (0,)) -> dict[str, Any]:
    """Run a process; its time, its processors' time, and the most memory that it had."""
    begin = time.perf_counter()
    process = subprocess.Popen(list(map(str, arguments)), stdout=subprocess.PIPE)
    output = "" if process.stdout is None else process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in codes:
        raise SystemExit(f"{arguments} failed: {os.waitstatus_to_exitcode(status)}")
    seconds = round(time.perf_counter() - begin, 2)
    first = output.split("\n", 1)[0]
    figures = json.loads(first) if first.startswith("{") and first.endswith("}") else {}
    cpu = round(used.ru_utime + used.ru_stime, 2)
    peak = round(used.ru_maxrss * 1024 / 1e9, 3)
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_gb": peak, **figures}


def of_prompts(folder: Path, prompts: int) -> dict[str, Any]:
    """What `encode` takes for this many prompts, and what it takes to find that nothing is left."""
    write_world(folder / "data", prompts, answers=False)
    run = (sys.executable, "-m", "benchmarks.large", "--encode", folder, "--width", str(NARROW))
    return {"encode": measure(run), "restart": measure(run)}


def of_queries(folder: Path, queries: int) -> dict[str, Any]:
    """What the commands take for this many queries."""
    write_world(folder / "data", queries)
    encode_into = ("--encode", folder, "--width", str(WIDE))
    figures = {"encode": measure((sys.executable, "-m", "benchmarks.large", *encode_into))}
    for name in COMMANDS:
        figures[name] = measure(command(name, folder), codes=(0, 4, 5))
        print(f"{queries:>12,} {name:9} {figures[name]}", flush=True)
    return figures


def command(name: str, folder: Path) -> list[str | Path]:
    """The command line of one measurement."""
    if name == "fit":
        return [sys.executable, "-m", "benchmarks.large", "--fit", folder]
    routers = folder / "routers.yaml"
    files.write_json(routers, {"routers": ROUTERS})  # JSON is YAML
    own: dict[str, list[str | Path]] = {
        "evaluate": [folder / "router", "--out", folder / name],
        "doctor": [folder / "router", "--no-probe"],
        "compare": [routers, "--out", folder / name],
    }
    program = Path(sys.executable).with_name("prefill-router")
    read: list[str | Path] = ["--data", folder / "data", "--store", folder / "states"]
    return [program, name, *own[name], *read, "--resamples", str(RESAMPLES)]


def exponents(rows: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, float]:
    """The slopes of time and memory between the two largest sizes, in logarithms."""
    sizes = sorted(map(int, rows))[-2:]
    if len(sizes) < 2:
        return {}
    less, more = (rows[str(size)][name] for size in sizes)
    apart = math.log(sizes[1] / sizes[0])
    both = [what for what in ("seconds", "cpu_seconds", "peak_gb") if what in less and what in more]
    return {what: round(math.log(more[what] / less[what]) / apart, 2) for what in both}


TICKS = {"seconds": (3, 10, 30, 100, 300, 1000), "peak_gb": (0.2, 0.5, 1, 2, 4)}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw time and memory by the number of queries; write the data."""
    figure = new_figure(11.0, 4.6)
    panels = figure.subplots(1, 2)
    names = [*COMMANDS, "encode"]
    rows = [
        {"command": name, "queries": size, **_numbers(results[part][str(size)][name])}
        for name in names
        for part in (("prompts",) if name == "encode" else ("queries",))
        for size in sorted(map(int, results[part]))
    ]
    for axes, what, words in zip(
        panels, ("seconds", "peak_gb"), ("seconds", "most memory, GB"), strict=True
    ):
        for place, name in enumerate(names):
            mine = [row for row in rows if row["command"] == name]
            colour = QUIET if name == "encode" else BLUE
            x, y = [row["queries"] for row in mine], [row[what] for row in mine]
            marker = f"{'osD^v'[place]}-"
            axes.plot(x, y, marker, color=colour, ms=5, alpha=1 - 0.17 * place, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_yticks(TICKS[what], [f"{tick:g}" for tick in TICKS[what]])
        axes.set_yticks([], minor=True)
        style(axes, x="queries", y=words)
    panels[0].legend(frameon=False)
    write_figure(figure, path, rows)


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    return {what: figures[what] for what in ("seconds", "peak_gb")}


def main() -> None:
    """Measure every size that isn't kept yet, the smallest first, and draw what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/large"))
    parser.add_argument("--largest", type=int, default=max(SIZES))
    parser.add_argument("--prompts", type=int, default=10_000_000)
    parser.add_argument("--again", action="store_true", help="measure what is kept, too")
    parser.add_argument("--encode", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--width", type=int, default=NARROW, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.encode is not None:
        encode(options.encode, options.width)
        return
    if options.fit is not None:
        fit(options.fit)
        return
    results = json.loads(RESULT.read_text()) if RESULT.exists() and not options.again else {}
    plans = (
        ("prompts", of_prompts, (*SIZES, options.prompts), options.prompts),
        ("queries", of_queries, SIZES, options.largest),
    )
    for part, run, sizes, most in plans:
        by_size = results.setdefault(part, {})
        for size in (size for size in sizes if size <= most and str(size) not in by_size):
            folder = options.folder / f"{part}-{size}"
            shutil.rmtree(folder, ignore_errors=True)
            by_size[str(size)] = run(folder, size)
            shutil.rmtree(folder)
            print(f"{part} {size:,}: {by_size[str(size)]}", flush=True)
            _write_results(results)
    if all(results[part] for part, *_ in plans):
        draw(results, RESULT.with_suffix(""))


def _write_results(results: dict[str, Any]) -> None:
    for part, names in (("prompts", ("encode", "restart")), ("queries", COMMANDS)):
        if results.get(part):
            results.setdefault("exponents", {})[part] = {
                name: exponents(results[part], name) for name in names
            }
    world = {"targets": TARGETS, "latents": LATENTS, "width": WIDE, "resamples": RESAMPLES}
    files.write_json(RESULT, results | {"world": world, "routers": ROUTERS, "machine": machine()})


if __name__ == "__main__":
    main()
