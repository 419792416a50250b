"""The paper's tables and figures, rebuilt on data at hand, beside the paper's own numbers."""

from prefill_router.reproduce import router_tables, study_tables  # noqa: F401 (registered)
from prefill_router.reproduce.cells import all_tables
from prefill_router.reproduce.claims import Claim, check
from prefill_router.reproduce.paper_numbers import Published, published
from prefill_router.reproduce.pools import Bench, PaperPool, find_pools
from prefill_router.reproduce.report import to_dict, write
from prefill_router.reproduce.reproduction import ReproduceMeans, reproduce
from prefill_router.reproduce.systems import PoolRun, ReproduceOptions

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
