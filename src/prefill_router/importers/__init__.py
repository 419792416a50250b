"""Scored answers in the formats that others use: one file per format, one function for all."""

from prefill_router.importers.base import ImportReport, Problem
from prefill_router.importers.columns import Columns
from prefill_router.importers.prices import read_prices
from prefill_router.importers.registry import FORMATS, Format, Imported, import_dataset
from prefill_router.importers.scale import Scale

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
