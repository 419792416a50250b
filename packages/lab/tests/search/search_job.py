"""A process with a team of two that waits to be killed; it prints the processes of the team."""

import multiprocessing
import sys
import time
from pathlib import Path

from packages.lab.tests.search.searching import STATES, seal_test, small_space
from prefill_router.engines import LocalEngine
from prefill_router.fitting import FoldScorer
from prefill_router_lab.search.trial_loop import _score_fold

if __name__ == "__main__":
    bench = FoldScorer(seal_test(Path("unused"))[0], (STATES,), 3, 0, "auc")
    candidate = next(small_space().all_candidates())
    with LocalEngine(2).pool(bench) as workers:
        recipe = small_space().recipe(candidate)
        futures = [workers.submit(_score_fold, (recipe, ("none",), fold)) for fold in (0, 1)]
        for future in futures:
            future.result()
        pids = [child.pid for child in multiprocessing.active_children()]
        sys.stdout.write(f"{' '.join(map(str, pids))}\n")
        sys.stdout.flush()
        time.sleep(600)
