"""The search for the best configuration, on train rows alone, and one look at the test part."""

from prefill_router.studies.search.sealed import SealedTest, TrainOnly, seal
from prefill_router.studies.search.search import SearchConfig, search
from prefill_router.studies.search.space import DEFAULT, Space, read_space
from prefill_router.studies.search.verdict import Verdict, choose, conclude

__all__ = [
    "DEFAULT",
    "SealedTest",
    "SearchConfig",
    "Space",
    "TrainOnly",
    "Verdict",
    "choose",
    "conclude",
    "read_space",
    "seal",
    "search",
]
