"""The paper's tables and figures, rebuilt on data at hand, beside the paper's own numbers."""

from prefill_router.reproduce.claims import Claim, check
from prefill_router.reproduce.pools import Bench, PaperPool, find_pools
from prefill_router.reproduce.published import Published, published
from prefill_router.reproduce.report import to_dict, write
from prefill_router.reproduce.reproduction import ReproduceMeans, reproduce
from prefill_router.reproduce.systems import PoolRun, ReproduceOptions
from prefill_router.reproduce.tables import all_tables

__all__ = [
    "Bench",
    "Claim",
    "PaperPool",
    "PoolRun",
    "Published",
    "ReproduceMeans",
    "ReproduceOptions",
    "all_tables",
    "check",
    "find_pools",
    "published",
    "reproduce",
    "to_dict",
    "write",
]
