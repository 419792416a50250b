"""The reverse proxy: a request goes to its target, the answer comes back byte for byte.

connections          the client's connection, and HTTP/1.1 connections to providers
proxied_connections  the same by way of a proxy
provider_endpoints   the way to each target: addresses, headers, limits
response_metadata    what is read of an answer in passing
passthrough          answers that are passed on as they are
failover             target after target, until one begins to answer
failures             what a target's failure means, and what clients are told
circuit_breakers     targets that fail time and again are left alone for a while
forwarder            the answer to its end
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
