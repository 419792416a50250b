"""Receipts: one row per request, in SQLite or PostgreSQL."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
