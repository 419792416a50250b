"""A pool of tiny language models that ships with the package, and tasks for them.

    from prefill_router_minipool import ENCODER, folder_of, make_tasks, pool

    make_tasks(1500, seed=0)                 # questions with one right answer each
    pool("http://127.0.0.1:8123/v1").names   # five targets, of different sizes and skills
    folder_of(ENCODER)                       # for `prefill-router encode --encoder`

Importing this loads no torch.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
