"""A client of OpenAI-compatible endpoints: one request gives one reply, or the reason for none.

async with Upstream(pool) as upstream:
    reply = await upstream.ask("gpt-oss-20b", "What is 17 * 23?")
"""

from prefill_router.upstream.client import Upstream, ask_once
from prefill_router.upstream.dialects import identity_parameters, request_parameters
from prefill_router.upstream.failures import RETRIABLE, ErrorBody, kind_of, read_error
from prefill_router.upstream.keys import NO_KEY, provider_keys
from prefill_router.upstream.plain_http import PLAIN_HTTP, check_encrypted, is_loopback
from prefill_router.upstream.pricing import (
    Bound,
    bound,
    cost_of,
    estimated_usage,
    plausible,
    reported_cost,
)
from prefill_router.upstream.reply import Reply, Usage
from prefill_router.upstream.retrying import retry_after
from prefill_router.upstream.usage import read_usage

__all__ = [
    "NO_KEY",
    "PLAIN_HTTP",
    "RETRIABLE",
    "Bound",
    "ErrorBody",
    "Reply",
    "Upstream",
    "Usage",
    "ask_once",
    "bound",
    "check_encrypted",
    "cost_of",
    "estimated_usage",
    "identity_parameters",
    "is_loopback",
    "kind_of",
    "plausible",
    "provider_keys",
    "read_error",
    "read_usage",
    "reported_cost",
    "request_parameters",
    "retry_after",
]
