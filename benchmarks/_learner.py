"""A learner that asks and judges, a second after each round, as `learn --follow` in its idle class.

The targets that it asks are its own, and not those that clients wait for: in production these have
machines of their own, here they share one core.

python -m benchmarks._learner RECEIPTS POOL FOLDER
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from prefill_router.learning import LearnerSettings, PurseLimits, learn
from prefill_router.minipool.server import ScriptedModel, serve
from prefill_router.targets import Pool, Target, read_pool

_PAUSE, _DOLLARS = 1.0, 1e6
_NEVER = 10**9
"""So many labels are never there: nothing is fitted."""


def verdict(prompt: str) -> str:
    """What the judge says of any answer."""
    return json.dumps({"reasoning": "", "correct": "yes" if len(prompt) % 2 else "no"})


def main() -> None:
    """Do rounds until the process is ended; a line of output tells that the first has ended."""
    receipts, pool, folder = sys.argv[1:4]
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    known = read_pool(Path(pool))
    answering = [ScriptedModel(target.name, lambda _: "another answer") for target in known]
    with serve([ScriptedModel("judge", verdict), *answering]) as server:
        judge = Target(name="judge", input_price=0.1, output_price=0.2, base_url=server.base_url)
        settings = LearnerSettings(
            receipts=receipts,
            pool=Pool(tuple(replace(target, base_url=server.base_url) for target in known)),
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
