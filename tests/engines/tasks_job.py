"""Tasks on a Ray that starts by itself; prints what came of them.

Run as a program, with a folder for marks.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from prefill_router.engines import RayEngine, ray_engine
from prefill_router.errors import EngineError, PromptError
from prefill_router.progress import Progress
from tests.engines.ray_cluster import descendants

ENGINE = RayEngine(workers=(2, 2))
LISTENING = "0A"


def dies_once(folder: Path, item: int, progress: Progress) -> int:
    """The square of a number; the first worker that is asked for 3 is killed."""
    del progress
    mark = folder / "died"
    if item == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def dies(table: np.ndarray, item: int, progress: Progress) -> int:
    del table, item, progress
    return os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[func-returns-value]


def refuses(table: np.ndarray, item: int, progress: Progress) -> int:
    del table, progress
    raise PromptError("the prompt is too long", query_id=f"q{item}")


def told(task: object) -> str:
    try:
        ENGINE.map(task, np.zeros(3), [7], finish=lambda _, one: one)  # type: ignore[arg-type]
    except PromptError as error:
        return f"PromptError {error.query_id}: {error}"
    except EngineError as error:
        return f"EngineError: {error}"
    return "no error"


def listening() -> list[str]:
    """The addresses that the processes of this Ray listen on, in hexadecimal."""
    inodes = set()
    for pid in (os.getpid(), *descendants(os.getpid())):
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            if path.is_symlink() and (found := str(path.readlink())).startswith("socket:["):
                inodes.add(found[len("socket:[") : -1])
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    places = {row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes}
    return sorted(places)


def main() -> None:
    os.environ.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)  # the engine's own affair
    squares = ENGINE.map(dies_once, Path(sys.argv[1]), range(6), finish=lambda _, one: one)
    found = {"squares": squares, "listening": listening(), "refused": told(refuses)}
    ray_engine.RETRIES = 1
    found["died"] = told(dies)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    from tests.engines import tasks_job  # so that workers find the tasks by their module

    tasks_job.main()
