"""Reading requests: their bytes, what they ask for, and what answering them needs."""

from prefill_router.gateway.protocol.envelope import Envelope, read_envelope
from prefill_router.gateway.protocol.names import ROUTING_NAMES, Asked, parse_model
from prefill_router.gateway.protocol.passing import Header, Passing, to_client
from prefill_router.gateway.protocol.scored import scored_prompt
from prefill_router.gateway.protocol.splicing import Splicer
from prefill_router.gateway.protocol.wishes import NO_WISHES, Wishes, read_wishes

__all__ = [
    "NO_WISHES",
    "ROUTING_NAMES",
    "Asked",
    "Envelope",
    "Header",
    "Passing",
    "Splicer",
    "Wishes",
    "parse_model",
    "read_envelope",
    "read_wishes",
    "scored_prompt",
    "to_client",
]
