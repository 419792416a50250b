"""The page that people look at, and the numbers behind it."""

from prefill_router.gateway.page.api import page_routes
from prefill_router.gateway.page.source import PageSource

__all__ = ["PageSource", "page_routes"]
