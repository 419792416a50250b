"""A learner that asks and judges, a second after each round, as `learn --follow` in its idle class.

python -m benchmarks._learner RECEIPTS POOL FOLDER URL

URL is that of the targets that it asks, `_side_targets`.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from prefill_router.targets import Pool, Target, read_pool
from prefill_router_gateway.learning import BudgetLimits, LearnerSettings, learn

_PAUSE, _DOLLARS = 1.0, 1e6
_NEVER = 10**9
"""More labels than there are ever: nothing is fitted."""


def main() -> None:
    """Do rounds until the process is ended; a line of output tells that the first has ended."""
    receipts, pool, folder, url = sys.argv[1:5]
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    targets = tuple(replace(target, base_url=url) for target in read_pool(Path(pool)))
    judge = Target(name="judge", input_price=0.1, output_price=0.2, base_url=url)
    settings = LearnerSettings(
        receipts=receipts,
        pool=Pool(targets),
        judges=Pool((judge,)),
        versions=folder,
        limits=BudgetLimits(in_all=_DOLLARS),
        least=_NEVER,
    )
    learn(settings)
    print("asking", flush=True)
    while True:
        time.sleep(_PAUSE)
        learn(settings)


if __name__ == "__main__":
    main()
