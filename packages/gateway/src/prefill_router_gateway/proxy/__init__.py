"""The reverse proxy: forwards a request to its target, and the answer back byte for byte.

client_connection    the client of a call
connections          the connections to a provider, and which of them are idle
proxied_connections  the same through a proxy that the environment names
response_stream      a provider's response as it arrives, with its time limits
deployments          a target's endpoints: in which order they are called, and the call
response_metadata    reads ids and token counts from an answer as it passes
forward_request      what a call to the targets needs, and the body that each of them gets
failover             calls target after target until one begins to answer
chat_answer          reads the answers of chats, for requests that were translated to chats
message_writer       writes them as messages
response_writer      writes them as responses
failures             classifies a target's failure, and makes the client's error
forwarder            forwards the answer to its end
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
