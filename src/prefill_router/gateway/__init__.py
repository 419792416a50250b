"""The gateway: an OpenAI-compatible server that sends each request to the target a router picks.

types        the vocabularies that all parts share
errors       the gateway's own error
records      what was decided about a request, how it ended, and its receipt
settings/    what can be set
protocol/    a request's bytes -> what is asked for, and what answering it needs
forecast/    the router's encoder and predictor, in a process of their own
decide/      which targets may answer, which of them does, and why
proxy/       the request to the target, the answer back byte for byte, failures on the way
receipts/    one row for each request; explain, replay and export read them
telemetry/   metrics, traces, logs, health
guard/       who may ask, and how much
runtime/     the pieces joined: what a reload replaces, and what lasts as long as the process
page/        what people look at
api/         the HTTP routes, one request after another, and the server's process
litellm/     for people who have LiteLLM: its configuration read, its router advised

Data goes down this list.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
