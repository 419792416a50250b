"""The gateway: an OpenAI-compatible server that sends each request to the target a router chooses.

    records      a request, the decision about it, its outcome, and its receipt
    errors       the gateway's own error
    settings     the settings, and where each value came from
    protocol/    reads a request's bytes: what it asks for, and what a target needs to answer it
    forecast/    the router's encoder and predictor, in a process of their own
    decide/      which targets may answer, which one does, and why
    proxy/       the request to the target, the answer back byte for byte, and failover
    receipts/    one row per request; explain, replay and export read them
    telemetry/   metrics, traces, logs, health
    guard/       authentication, rate limits and checks of requests
    shared/      what replicas share through one PostgreSQL database
    runtime/     the assembled gateway: what a reload replaces, and what lasts
    page/        the web page, and the numbers on it
    api/         the HTTP routes and the server's process
    litellm/     for users of LiteLLM: reads its configuration, and serves as its routing strategy

Data flows down this list.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
