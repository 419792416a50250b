"""The HTTP interface: every route, one request after another, and the server's process.

app                  the application: every route, the guard before it, its own endpoints
routed_calls         a request read, decided on, forwarded and recorded
dry_run              a request decided on alone
passthrough_routes   what is passed on undecided: stored responses, counts of tokens
openapi              what the OpenAPI document says of all of these
server               the process, or a thread of another one
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
