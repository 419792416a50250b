"""A client of OpenAI-compatible endpoints: one request returns one reply or raises one error.

async with Upstream(pool) as upstream:
    reply = await upstream.ask("gpt-oss-20b", "What is 17 * 23?")
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
