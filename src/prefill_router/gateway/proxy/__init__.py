"""The reverse proxy: a request goes to its target, the answer comes back byte for byte.

call                 the request to forward, the client's connection, the reply as it arrives
connections          HTTP/1.1 connections to one provider
provider_endpoints   the way to each target: addresses, headers, limits, an HTTP proxy on the way
attempt              one call of one target: how its answer begins, or what its failure means
failover             target after target, until one answers; what clients are told where none does
circuit_breakers     targets that fail time and again are left alone for a while
forwarder            the answer to its end
response_metadata    what is read of an answer in passing
stream_observer      a stream of events, looked at in passing
"""

from prefill_router.lazy_imports import optional_imports

with optional_imports("the gateway"):
    from prefill_router.gateway.proxy.call import ForwardRequest, Header
    from prefill_router.gateway.proxy.circuit_breakers import Breakers, BreakerState
    from prefill_router.gateway.proxy.forwarder import Forwarder, TargetState

__all__ = ["BreakerState", "Breakers", "ForwardRequest", "Forwarder", "Header", "TargetState"]
