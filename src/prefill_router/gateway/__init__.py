"""The gateway: an OpenAI-compatible server that sends each request to the target a router picks.

protocol/      a request's bytes -> what is asked for, and what answering needs
forecasting/   the router's encoder and predictor, in a process of their own
deciding/      which targets may answer, which of them does, and why
forwarding/    the request to the target, the answer back byte for byte, failures on the way
receipts/      one row for each request; explain, replay and export read them
telemetry/     metrics, traces, logs
guarding/      who may ask, and how much
page/          what people look at
serving/       joins the pieces, one request after another
litellm/       for people who have LiteLLM: its configuration read, its router advised

Data goes down this list; `settings/` says what can be set, `words.py` which words all parts share.
"""
