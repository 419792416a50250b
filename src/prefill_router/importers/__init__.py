"""Scored answers in the formats that others use: one file per format, one function for all."""

from prefill_router.importers.builder import ImportReport, Problem
from prefill_router.importers.columns import Columns, Scale
from prefill_router.importers.dataset_import import Imported, import_dataset, read_prices
from prefill_router.importers.registry import FORMATS, Format

__all__ = [
    "FORMATS",
    "Columns",
    "Format",
    "ImportReport",
    "Imported",
    "Problem",
    "Scale",
    "import_dataset",
    "read_prices",
]
