"""Forwarding: a request goes to its target, the answer comes back byte for byte.

lines/connections/connection/proxied   the way to each provider
opening, verdicts                      one call of one target, up to where its answer begins
search, breakers                       target after target, until one answers
running, watch, facts, telling         the answer to its end, and what is seen of it in passing
whole_lines                            the same of a plain call, of which nothing is read
"""

from prefill_router.gateway.forwarding.arrival import Header
from prefill_router.gateway.forwarding.breakers import Breakers, BreakerState
from prefill_router.gateway.forwarding.call import Call
from prefill_router.gateway.forwarding.forwarder import Forwarder, TargetState

__all__ = ["BreakerState", "Breakers", "Call", "Forwarder", "Header", "TargetState"]
