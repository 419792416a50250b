"""A learner that asks and judges, a second after each round, in a process at low priority.

python -m benchmarks._learner RECEIPTS POOL FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

from prefill_router.learning import LearnerSettings, PurseLimits, learn
from prefill_router.minipool.server import ScriptedModel, serve
from prefill_router.targets import Pool, Target, read_pool

_NICE, _PAUSE, _DOLLARS = 10, 1.0, 1e6
_NEVER = 10**9
"""So many labels are never there: nothing is fitted."""


def verdict(prompt: str) -> str:
    """What the judge says of any answer."""
    return json.dumps({"reasoning": "", "correct": "yes" if len(prompt) % 2 else "no"})


def main() -> None:
    """Do rounds until the process is ended; a line of output tells that the first has ended."""
    receipts, pool, folder = sys.argv[1:4]
    os.nice(_NICE)
    with serve([ScriptedModel("judge", verdict)]) as server:
        judge = Target(name="judge", input_price=0.1, output_price=0.2, base_url=server.base_url)
        settings = LearnerSettings(
            receipts=receipts,
            pool=read_pool(Path(pool)),
            judges=Pool((judge,)),
            versions=folder,
            limits=PurseLimits(in_all=_DOLLARS),
            least=_NEVER,
        )
        learn(settings)
        print("asking", flush=True)
        while True:
            time.sleep(_PAUSE)
            learn(settings)


if __name__ == "__main__":
    main()
