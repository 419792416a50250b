"""What the gateway reports of itself: metrics, its log, traces and health checks.

metrics   counts requests for Prometheus, and writes the lines of the log
gauges    the gauges for Prometheus, which are read on each scrape
traces    one span per request, sent to an OpenTelemetry collector
health    the checks of `/health` and `/ready`, and the event loop's lag
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
