"""A client of OpenAI-compatible endpoints: one request gives one reply, or the reason for none.

async with Upstream(pool) as upstream:
    reply = await upstream.ask("gpt-oss-20b", "What is 17 * 23?")
"""

from prefill_router.client.call_costs import (
    CallBound,
    bound,
    cost_of,
    estimated_usage,
    plausible,
    reported_cost,
)
from prefill_router.client.client import Upstream, ask_once
from prefill_router.client.dialects import identity_parameters, request_parameters
from prefill_router.client.failures import RETRIABLE, ErrorBody, kind_of, read_error
from prefill_router.client.keys import (
    NO_KEY,
    PLAIN_HTTP,
    check_encrypted,
    is_loopback,
    provider_keys,
)
from prefill_router.client.reply import Reply, Usage, read_usage
from prefill_router.client.retries import retry_after

__all__ = [
    "NO_KEY",
    "PLAIN_HTTP",
    "RETRIABLE",
    "CallBound",
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
