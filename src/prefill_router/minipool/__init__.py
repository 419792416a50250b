"""A pool of tiny language models that ships with the package, and tasks for them.

    from prefill_router.minipool import ENCODER, folder_of, make_tasks, pool

    make_tasks(1500, seed=0)                 # questions with one right answer each
    pool("http://127.0.0.1:8123/v1").names   # five targets, of different sizes and skills
    folder_of(ENCODER)                       # for `prefill-router encode --encoder`

Importing this loads no torch.
"""

from prefill_router.minipool.pool_models import ENCODER, NAMES, folder_of, pool
from prefill_router.minipool.tasks import MiniTask, make_tasks

__all__ = ["ENCODER", "NAMES", "MiniTask", "folder_of", "make_tasks", "pool"]
