"""Targets, the language models that are routed to, and pools of them.

On disk a pool is `pool.yaml`, or, where only prices are known, `prices.csv`; see `targets.storage`.
"""

from prefill_router.targets.dialects import DIALECTS, ENDPOINTS, Dialect, Endpoint
from prefill_router.targets.pool import Pool
from prefill_router.targets.provider import ABILITIES, Ability, Provider
from prefill_router.targets.storage import pool_from_dict, read_pool, write_pool
from prefill_router.targets.target import RequestOptions, Target

__all__ = [
    "ABILITIES",
    "DIALECTS",
    "ENDPOINTS",
    "Ability",
    "Dialect",
    "Endpoint",
    "Pool",
    "Provider",
    "RequestOptions",
    "Target",
    "pool_from_dict",
    "read_pool",
    "write_pool",
]
