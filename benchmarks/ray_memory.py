"""Encoding of many prompts on Ray: the most memory of the driver and of a worker, at two sizes.

An encoder that costs next to nothing, so that what is measured is the handing out of the prompts.
The driver's memory includes its plan, some tens of bytes for each prompt, which one process has,
too: `plan` is what it had before the work began.

    python -m benchmarks.ray_memory [--folder FOLDER] [--sizes 200000 1000000]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks._large_world import LatentEncoder, write_world
from benchmarks._networks import RESULTS, machine
from benchmarks.ray_engine import workers
from prefill_router import files
from prefill_router.activations import ActivationStore, Site
from prefill_router.data import QueryFile
from prefill_router.encoders import plan_encoding, run_encoding_on
from prefill_router.engines import RayEngine

WIDTH, WORKERS = 8, 2


class LatentSource:
    """Loads the encoder in a worker."""

    provenance = LatentEncoder(WIDTH).provenance

    def load(self, device: str) -> LatentEncoder:
        """Load it."""
        del device
        return LatentEncoder(WIDTH)


def encode(folder: Path) -> None:
    """Encode a folder's prompts and print what it took."""
    start, most = time.perf_counter(), dict[int, float]()
    plan = plan_encoding(
        QueryFile.open(folder / "data"),
        LatentEncoder(WIDTH),
        folder / "states",
        sites=[Site(4, "mean")],
        cache=folder / "cache",
    )
    figures: dict[str, Any] = {"plan_gb": peak_gb(os.getpid()), "left": plan.left}
    figures["plan_seconds"] = round(time.perf_counter() - start, 1)
    Thread(target=watch, args=(most,), daemon=True).start()
    source: Any = LatentSource()
    figures |= {"shards": len(plan.chunks)}
    report = run_encoding_on(RayEngine(workers=(WORKERS, WORKERS)), plan, source)
    figures |= {"driver_gb": peak_gb(os.getpid()), "worker_gb": max(most.values(), default=0.0)}
    print(json.dumps(figures | {"seconds": round(report.seconds, 1)}), flush=True)


def watch(most: dict[int, float]) -> None:
    """Note the most memory of each worker, until this process ends."""
    while True:
        for pid in workers(os.getpid()):
            most[pid] = peak_gb(pid) or most.get(pid, 0.0)
        time.sleep(0.2)


def peak_gb(pid: int) -> float:
    """The most memory that a process had; of Ray's shared memory, what it has touched."""
    try:
        rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    kilobytes = [int(row.split()[1]) for row in rows if row.startswith("VmHWM:")]
    return round(sum(kilobytes) * 1024 / 1e9, 3)


def measure(folder: Path, prompts: int) -> dict[str, Any]:
    """One size; what is encoded is checked, and found complete by a second run."""
    shutil.rmtree(folder, ignore_errors=True)
    write_world(folder / "data", prompts, answers=False)
    words = [sys.executable, "-m", "benchmarks.ray_memory", "--encode", str(folder)]
    environment = os.environ | {"RAY_worker_niceness": "0"}  # other programs would starve them
    first: dict[str, Any]
    first, again = (
        json.loads(
            subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment).stdout
        )
        for _ in range(2)
    )
    assert len(ActivationStore.open(folder / "states")) == prompts
    assert again["left"] == 0
    shutil.rmtree(folder)
    return first


def main() -> None:
    """Measure the sizes and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/ray_memory"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--encode", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.encode is not None:
        from benchmarks import ray_memory  # so that workers find the encoder by its module

        ray_memory.encode(options.encode)
        return
    by_size = {}
    for size in options.sizes:
        by_size[str(size)] = measure(options.folder, size)
        print(size, by_size[str(size)], flush=True)
    files.write_json(
        RESULTS / "ray_memory.json", {"machine": machine(), "workers": WORKERS, "prompts": by_size}
    )


if __name__ == "__main__":
    main()
