"""The paper's tables and figures, rebuilt on data at hand, beside the paper's own numbers."""

from prefill_router.reports.reproduce.claims import Claim, check
from prefill_router.reports.reproduce.pools import Bench, Found, find_pools
from prefill_router.reports.reproduce.published import Published, published
from prefill_router.reports.reproduce.report import to_dict, write
from prefill_router.reports.reproduce.run import Options, Run
from prefill_router.reports.reproduce.tables import all_tables
from prefill_router.reports.reproduce.work import Means, reproduce

__all__ = [
    "Bench",
    "Claim",
    "Found",
    "Means",
    "Options",
    "Published",
    "Run",
    "all_tables",
    "check",
    "find_pools",
    "published",
    "reproduce",
    "to_dict",
    "write",
]
