"""Requests as they come: their bytes, what they ask for, and what answering them needs.

envelope          a request's body, read once: checked, and what the encoder reads of it
json_splice       a JSON object with the place of each value; the same bytes for another model
turns             a request's turns as text, its conversation, and what a target must be able to do
headers           what headers and the model's name ask of the decision, and which headers go on
"""

from prefill_router.gateway.protocol.envelope import Envelope, read_envelope, scored_prompt
from prefill_router.gateway.protocol.headers import (
    NO_PREFERENCES,
    ROUTING_NAMES,
    HeaderFilter,
    RequestedModel,
    RoutingPreferences,
    parse_model,
    read_preferences,
    to_client,
)
from prefill_router.gateway.protocol.json_splice import Splicer
from prefill_router.gateway.records import Header

__all__ = [
    "NO_PREFERENCES",
    "ROUTING_NAMES",
    "Envelope",
    "Header",
    "HeaderFilter",
    "RequestedModel",
    "RoutingPreferences",
    "Splicer",
    "parse_model",
    "read_envelope",
    "read_preferences",
    "scored_prompt",
    "to_client",
]
