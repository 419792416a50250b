"""The search for the best configuration, on train rows alone, and one look at the test part."""

from prefill_router.studies.search.cross_validation import SearchConfig, search
from prefill_router.studies.search.holdout_guard import SealedTest, TrainOnly, seal
from prefill_router.studies.search.space import DEFAULT, Space, read_space
from prefill_router.studies.search.winner import SearchResult, choose, conclude

__all__ = [
    "DEFAULT",
    "SealedTest",
    "SearchConfig",
    "SearchResult",
    "Space",
    "TrainOnly",
    "choose",
    "conclude",
    "read_space",
    "seal",
    "search",
]
