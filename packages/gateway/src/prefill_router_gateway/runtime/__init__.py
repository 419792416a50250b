"""The assembled gateway and its state.

configuration   reads router, pool, settings and keys, and reports every error at once
request_scope   the snapshot that a request uses throughout, and the record made of the request
activity        readings of the gateway's parts, for gauges and health checks, and what was saved
startup         checks, forecasters, and what is restored from receipts
versions        which versions of a router serve
gateway         the state that lasts as long as the process
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
