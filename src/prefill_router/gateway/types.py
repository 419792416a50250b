"""The words that several parts of the gateway share: endpoints, abilities, reasons, headers."""

from typing import Literal, get_args

from prefill_router.targets import Ability, Endpoint

Scored = Literal["last_user", "last_user_with_system", "conversation", "conversation_with_system"]
"""What of a request the encoder reads: its last user turn, or all turns; system prompts or not."""
SCORED: tuple[Scored, ...] = get_args(Scored)

Reason = Literal["policy", "session", "tool_loop", "named", "fallback", "share", "stored"]
"""Why a target was chosen.

- `policy`: the router's policy, on its forecast;
- `session`: the conversation's target was kept, since a switch would cost more than it gains;
- `tool_loop`: the conversation waits for tool results, and never changes its target there;
- `named`: the client named the target;
- `fallback`: there was no forecast, see `FallbackReason`;
- `share`: the request is outside the share of traffic that is routed;
- `stored`: the request goes on from a response that this target keeps (`previous_response_id`).
"""
REASONS: tuple[Reason, ...] = get_args(Reason)

FallbackReason = Literal["deadline", "queue_full", "encoder_down", "unreadable", "novel", "no_text"]
"""Why there was no forecast, or why it wasn't trusted.

- `deadline`: it took longer than the deadline;
- `queue_full`: so many requests were waiting that it would have, and it wasn't begun;
- `encoder_down`: the encoder's process isn't running, or failed;
- `unreadable`: the encoder can't read this prompt; `no_text`: there is no text to read;
- `novel`: the request is unlike anything the router learned from.
"""
FALLBACK_REASONS: tuple[FallbackReason, ...] = get_args(FallbackReason)

FALLBACKS = ("prior", "best", "cheapest")
"""Who decides without a forecast, beside a target's own name; see `settings.RoutingSettings`."""

OutcomeKind = Literal["answered", "refused", "failed", "cut", "disconnected", "routed"]
"""How a request ended.

- `answered`: the whole answer went to the client;
- `refused`: a target answered with an error that is the client's own (400, say), passed on;
- `failed`: no target gave an answer, and nothing but an error went to the client;
- `cut`: the answer broke off after its first byte; the client got an error event at its end;
- `disconnected`: the client left first;
- `routed`: the decision alone was asked for.
"""
OUTCOMES: tuple[OutcomeKind, ...] = get_args(OutcomeKind)

HEADER = "x-prefill-router-"
"""What the names of the gateway's own headers begin with, in requests and replies."""
SESSION_HEADER = "x-session-id"

__all__ = [
    "FALLBACKS",
    "FALLBACK_REASONS",
    "HEADER",
    "OUTCOMES",
    "REASONS",
    "SCORED",
    "SESSION_HEADER",
    "Ability",
    "Endpoint",
    "FallbackReason",
    "OutcomeKind",
    "Reason",
    "Scored",
]
