"""Workers of both kinds on a cluster; prints the devices that did the work, and what was refused.

Run as a program, with the cluster's address and an empty folder.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prefill_router.engines import RayEngine, ray_engine
from prefill_router.errors import EngineError, StoreError


def on(folder: Path, devices: int, device: str) -> Callable[[int], tuple[int, str]]:
    (folder / device).touch()

    def work(item: int) -> tuple[int, str]:
        while len(list(folder.iterdir())) < devices:  # no worker does it all before the other began
            time.sleep(0.1)
        if item < 0:
            raise StoreError("the state isn't finite")
        return item, device

    return work


def main() -> None:
    engine = RayEngine(address=sys.argv[1], workers=(1, 1))
    folder = Path(sys.argv[2])
    found = list(engine.stream(partial(on, folder, 2), range(40), gpu_workers=(1, 1)))
    refused = []
    for items, retries in (([-1], 20), ([1], 0)):  # none may be begun even once
        ray_engine.RETRIES = retries
        try:
            list(engine.stream(partial(on, folder, 1), items))
        except (StoreError, EngineError) as error:
            refused.append(f"{type(error).__name__}: {error}")
    devices = sorted({device for _, device in found})
    told = {"items": sorted(item for item, _ in found), "devices": devices, "refused": refused}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    from tests.engines import devices_job  # so that workers find the work by its module

    devices_job.main()
