"""What deciding needs to know of a request; never its text."""

from dataclasses import dataclass
from typing import final

from prefill_router.gateway.words import Ability, Endpoint


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """What deciding needs to know of a request.

    Attributes:
        endpoint: What is asked.
        at: When it came, seconds since 1970.
        text_bytes: Bytes of all its text, UTF-8.
        scored_bytes: Bytes of the part that the encoder reads.
        needs: What its target must be able to do.
        max_tokens: The most output tokens that the client allows; None for no limit.
        session: What names its conversation, `session_name`; None where nothing does.
        opening: Whether a conversation that is known by its first turns has no further ones yet.
            Others may begin alike, so it isn't held to their target.
        in_tool_loop: Whether it brings the results of tools that a target called.
        tool_call_ids: The calls whose results it brings.
        previous_response_id: The stored response that it goes on from.
        named: The target that the client named.
        lam_asked: The trade-off that the client asked for.
        max_cost: The most that it may cost, estimated, US dollars.
        allow: The targets that the client allows; None for all.
        exclude: The targets that the client rules out.
        key: The name of the client's key; None where none is asked for.
        key_targets: The targets that the key may use; None for all.
        to_call: Whether the target will be called, so that it needs an endpoint; False where the
            decision alone is asked for.
    """

    endpoint: Endpoint
    at: float
    text_bytes: int = 0
    scored_bytes: int = 0
    needs: frozenset[Ability] = frozenset()
    max_tokens: int | None = None
    session: str | None = None
    opening: bool = False
    in_tool_loop: bool = False
    tool_call_ids: tuple[str, ...] = ()
    previous_response_id: str | None = None
    named: str | None = None
    lam_asked: float | None = None
    max_cost: float | None = None
    allow: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    key: str | None = None
    key_targets: frozenset[str] | None = None
    to_call: bool = True
