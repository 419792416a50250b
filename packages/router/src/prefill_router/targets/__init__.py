"""Targets (the language models that requests are routed to) and pools of targets.

On disk a pool is `pool.yaml`, or, where only prices are known, `prices.csv`; see `targets.pool`.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
