"""Forwarding: a request to its target, the answer back, and failures on the way."""
