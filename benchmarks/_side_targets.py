"""The targets and the judge that a learner asks; a line of output tells their URL.

python -m benchmarks._side_targets POOL
"""

import json
import os
import signal
import sys
from pathlib import Path

from prefill_router.targets import read_pool
from prefill_router_minipool.server import ScriptedModel, serve


def verdict(prompt: str) -> str:
    """What the judge says of any answer."""
    return json.dumps({"reasoning": "", "correct": "yes" if len(prompt) % 2 else "no"})


def main() -> None:
    """Answer until the process is ended, while no other process needs the core."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    targets = read_pool(Path(sys.argv[1]))
    answering = [ScriptedModel(target.name, lambda _: "another answer") for target in targets]
    with serve([ScriptedModel("judge", verdict), *answering]) as server:
        print(server.base_url, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
