"""The HTTP interface: every route, and the server's process.

app                  the application: every route behind the guard, and the gateway's own endpoints
routed_calls         reads, decides, forwards and records a request
feedback             takes scores of answers, turns and conversations
decisions            decides without calling a target, and takes what came of it elsewhere
passthrough_routes   forwards without a routing decision: stored responses, token counts
openapi              the OpenAPI document of these routes
server               runs the gateway as a process, or in a thread of another one
supervisor           runs several workers on one port, with one encoder's process
worker               one of them, as a process, and the calls between the two
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
