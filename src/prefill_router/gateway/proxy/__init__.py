"""The reverse proxy: forwards a request to its target, and the answer back byte for byte.

connections          the client's connection, and HTTP/1.1 connections to providers
proxied_connections  connections to providers through a proxy
provider_endpoints   each target's endpoint: address, headers, connections, limits
response_metadata    reads ids and token counts from an answer as it passes
passthrough          answers that are forwarded unread
failover             calls target after target until one begins to answer
message_translation  translates chats to messages, for requests that were translated
failures             classifies a target's failure, and makes the client's error
deployments          which endpoints may be called now, and in which order: breakers, rate limits
forwarder            forwards the answer to its end
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
