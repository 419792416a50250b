"""Calls of models' endpoints: one request returns one reply or raises one error.

async with Upstream(pool) as upstream:
    reply = await upstream.ask("gpt-oss-20b", "What is 17 * 23?")

A call:

client              calls a pool's targets, each with its provider's key and dialect
request_body        the fields and messages of a request
effort_fields       a target's effort in place of a request's own
keys, redaction     the providers' keys, and how they are kept out of what is written
call                sends a request and reads the reply
transport           addresses, headers, certificates and HTTP clients
events              the lines and events of a stream
reply_reader        an answer that arrives in pieces; with merged_object and thinking
reply, usage        what an answer is, and its token counts
failures            why there is no answer, and what to do
error_body          an error as an endpoint reports it, and its kind

When to call:

retries             how often a failed call is repeated, and after how long a wait
rate_limits         calls and tokens per minute, concurrent calls
rate_limit_headers  what an endpoint says of its limits
breakers            targets that aren't called for a while, or any more

What calls cost:

prices, bills       what one call costs, and the most that it can cost
spending            a budget that is never exceeded
paid_calls          calls within a budget and the rate limits
price_list          prices refreshed from a provider's list
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
