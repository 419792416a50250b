"""The literal types that several parts of the gateway share, and the names of its headers."""

from typing import Literal, get_args

from prefill_router.targets import Ability, Endpoint

Scored = Literal["last_user", "last_user_with_system", "conversation", "conversation_with_system"]
"""The part of a request that the encoder reads: the last user turn or all turns, with or without
system prompts."""
SCORED: tuple[Scored, ...] = get_args(Scored)

Reason = Literal[
    "policy", "session", "tool_loop", "named", "fallback", "share", "stored", "latency", "headroom"
]
"""Why a target was chosen.

- `policy`: the router's policy chose it, by its forecast;
- `session`: the conversation's target was kept, since a switch would cost more than it gains;
- `tool_loop`: the conversation is in a tool loop, where it keeps its target;
- `named`: the client named the target;
- `fallback`: there was no forecast that could be used, see `FallbackReason`;
- `share`: the request is outside the share of traffic that is routed;
- `stored`: the request continues a response that this target keeps (`previous_response_id`);
- `latency`: the policy's choice is predicted to be too slow, see `settings.LatencySettings`;
- `headroom`: the rate limits of the policy's choice allow no further request.
"""
REASONS: tuple[Reason, ...] = get_args(Reason)

FallbackReason = Literal[
    "deadline", "queue_full", "encoder_down", "unreadable", "novel", "no_text", "no_router"
]
"""Why there was no forecast, or why it wasn't trusted.

- `deadline`: it took longer than the deadline;
- `queue_full`: so many requests were queued that it would have missed the deadline;
- `encoder_down`: the encoder's process isn't running, or failed;
- `unreadable`: the encoder can't read this prompt; `no_text`: there is no text to read;
- `novel`: the request is unlike the router's train rows;
- `no_router`: no router has been fitted yet, so the default target answers.
"""
FALLBACK_REASONS: tuple[FallbackReason, ...] = get_args(FallbackReason)

FALLBACKS = ("prior", "best", "cheapest")
"""The fallbacks without a forecast, besides a target's name; see `settings.RoutingSettings`."""

OutcomeKind = Literal["answered", "refused", "failed", "cut", "disconnected", "routed"]
"""How a request ended.

- `answered`: the client got the whole answer;
- `refused`: a target answered with the client's own error (400, say), which was forwarded;
- `failed`: no target answered, and the client got only an error;
- `cut`: the answer broke off after its first byte; the client got an error event at its end;
- `disconnected`: the client disconnected first;
- `routed`: only the decision was requested (a dry run).
"""
OUTCOMES: tuple[OutcomeKind, ...] = get_args(OutcomeKind)

HEADER = "x-prefill-router-"
"""The prefix of the gateway's own headers, in requests and responses."""
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
