"""The assembled gateway and its state.

configuration   reads router, pool, settings and keys, and reports every error at once
snapshot        the router, pool and settings that a request uses from beginning to end
request_record  what is recorded of a request: response headers, receipt, metrics, log
readings        readings of the gateway's parts, for gauges and health checks
savings_reports what routing saved, computed from the receipts
startup         checks, forecasters, and what is restored from receipts
versions        which versions of a router serve
gateway         the state that lasts as long as the process
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
