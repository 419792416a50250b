"""Queries, labels and token counts: the dataset, its regimes, its splits, its folder on disk."""

from typing import TYPE_CHECKING

from prefill_router.data.dataset import (
    Message,
    Prompt,
    Query,
    Regime,
    RoutingDataset,
    Table,
    binary,
    prompt_key,
    prompt_text,
    regimes,
)
from prefill_router.data.dataset_merge import merge
from prefill_router.data.origin import Origin
from prefill_router.data.splits import (
    FRACTIONS,
    PARTS,
    WITH_CALIBRATION,
    Part,
    Split,
    load_split,
    save_split,
    split,
    split_from_dict,
    stratified_folds,
)
from prefill_router.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from prefill_router.data.storage import is_dataset, read_dataset, write_dataset
    from prefill_router.data.summary import PartSummary, Summary, TargetSummary, summarise

_HOME = {
    **dict.fromkeys(("is_dataset", "read_dataset", "write_dataset"), "storage"),
    **dict.fromkeys(("PartSummary", "Summary", "TargetSummary", "summarise"), "summary"),
}

__all__ = [
    "FRACTIONS",
    "PARTS",
    "WITH_CALIBRATION",
    "Message",
    "Origin",
    "Part",
    "PartSummary",
    "Prompt",
    "Query",
    "Regime",
    "RoutingDataset",
    "Split",
    "Summary",
    "Table",
    "TargetSummary",
    "binary",
    "is_dataset",
    "load_split",
    "merge",
    "prompt_key",
    "prompt_text",
    "read_dataset",
    "regimes",
    "save_split",
    "split",
    "split_from_dict",
    "stratified_folds",
    "summarise",
    "write_dataset",
]

__getattr__ = lazy_attributes(__name__, _HOME)
