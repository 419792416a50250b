"""A client of OpenAI-compatible endpoints: one request gives one reply, or the reason for none."""

from prefill_router.upstream.reply import Reply, Usage

__all__ = ["Reply", "Usage"]
