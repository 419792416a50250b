"""The page that people look at, and the numbers behind it."""

from prefill_router.lazy_imports import optional_imports

with optional_imports("the gateway"):
    from prefill_router.gateway.page.routes import PageSource, page_routes

__all__ = ["PageSource", "page_routes"]
