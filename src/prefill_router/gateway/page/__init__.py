"""The page that people look at, and the numbers behind it."""

from prefill_router.gateway.page.routes import PageSource, page_routes

__all__ = ["PageSource", "page_routes"]
