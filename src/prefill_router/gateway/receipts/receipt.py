"""A receipt: what was decided about one request, what it cost, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.gateway.choice import Choice
from prefill_router.gateway.outcome import Outcome
from prefill_router.gateway.words import Endpoint, Scored


@final
@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What is kept of one request.

    Attributes:
        choice: What was decided.
        outcome: How it ended.
        at: When it came, seconds since 1970.
        router: The fingerprint of the router that decided; empty where none did.
        policy: The kind of its policy; empty where none decided.
        endpoint: What was asked.
        requested: The model that the client named.
        stream: Whether the answer was streamed.
        key: The name of the client's key; None where none is asked for.
        scored: What the encoder read of the request.
        cost: Observed cost at the target's prices, US dollars; None where unknown.
        cost_is_estimated: Whether it is by estimates: no counts came, or none that can be true.
        decision_seconds: From the whole request's arrival to the decision.
        forecast_seconds: Of it, waiting for the forecast; None where there was none.
        prompt: What the encoder read, where prompts are kept: a text, or messages as plain values.
        details: What else may be told, plain values.
    """

    choice: Choice
    outcome: Outcome
    at: float
    router: str
    policy: str
    endpoint: Endpoint
    requested: str
    stream: bool
    key: str | None
    scored: Scored
    cost: float | None
    cost_is_estimated: bool
    decision_seconds: float
    forecast_seconds: float | None
    prompt: str | list[dict[str, str]] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
