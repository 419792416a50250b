"""One call as it is to be forwarded."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import final

from prefill_router.gateway.forwarding.arrival import Header
from prefill_router.gateway.outcome import Attempt, Outcome
from prefill_router.gateway.words import Endpoint


def _nothing() -> None:
    pass


@final
@dataclass(frozen=True, kw_only=True)
class Call:
    """One call.

    Attributes:
        endpoint: What is asked.
        method: The HTTP method.
        below: What follows the endpoint's path, percent-encoded, such as `/resp_1/cancel`.
        query: What the client's address has behind its question mark, percent-encoded.
        is_plain: Whether the answer is passed on as it is, and nothing is read of it.
        lacking: The statuses by which a target tells a plain call that it has no such call.
        bodies: The body for a target, by its name; made anew for each attempt.
        order: The targets that may be asked, the first one first.
        stream: Whether a stream is asked for.
        usage_added: Whether the body asks for token counts that the client didn't ask for; the one
            event that tells nothing else is then left out.
        headers: The client's headers, as far as targets get them; names in lower case.
        reply_headers: The gateway's own headers of the answer, given who answers (None for nobody)
            and what was tried.
        finished: Awaited once, just before the last byte goes to the client, or where it has left.
        stay: Whether nobody but the first target may answer.
        input_tokens: Of the request, estimated; used where a target reports none.
        began: When the request came, by the loop's clock; None for now.
        named: Called once a stream has told the answer's id: who answers, and the id.
        settled: Called once no target will be asked any more, so that bodies are needed no longer.
    """

    endpoint: Endpoint
    bodies: Callable[[str], bytes]
    order: tuple[str, ...]
    finished: Callable[[Outcome], Awaitable[None]]
    reply_headers: Callable[[str | None, tuple[Attempt, ...]], list[Header]]
    stream: bool = False
    usage_added: bool = False
    headers: list[Header] = field(default_factory=list)
    stay: bool = False
    input_tokens: int = 0
    began: float | None = None
    method: bytes = b"POST"
    below: bytes = b""
    query: bytes = b""
    is_plain: bool = False
    lacking: frozenset[int] = frozenset()
    named: Callable[[str, str], None] | None = None
    settled: Callable[[], object] = _nothing
