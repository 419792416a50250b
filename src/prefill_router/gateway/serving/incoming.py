"""A request that has come: its body, its headers and its key, as deciding needs them."""

import re
from dataclasses import dataclass
from typing import final

from starlette.types import Scope

from prefill_router.data import Prompt, prompt_text
from prefill_router.gateway.deciding import Question, session_name
from prefill_router.gateway.guarding import ClientKey
from prefill_router.gateway.protocol import (
    Asked,
    Envelope,
    Wishes,
    parse_model,
    read_envelope,
    read_wishes,
    scored_prompt,
)
from prefill_router.gateway.settings import Settings
from prefill_router.gateway.words import Endpoint, Scored
from prefill_router.targets import Pool

Headers = list[tuple[bytes, bytes]]
_odd = re.compile(rb"[^!-~]").sub


@final
@dataclass(frozen=True, kw_only=True)
class Incoming:
    """A request that was read.

    Attributes:
        envelope: Its body, of which the fields are forgotten.
        question: What deciding needs to know of it.
        prompt: What the encoder is to read; None for nothing. Of a request that names its target,
            what it would have read, where prompts are kept.
        scored: Which part of the request that is.
    """

    envelope: Envelope
    question: Question
    prompt: Prompt | None
    scored: Scored


def read_incoming(
    endpoint: Endpoint,
    body: bytes,
    headers: Headers,
    *,
    key: ClientKey | None,
    settings: Settings,
    pool: Pool,
    lam: float | None,
    at: float,
    to_call: bool = True,
) -> Incoming:
    """Read a request.

    Args:
        endpoint: What is asked.
        body: All of it.
        headers: Names in lower case.
        key: The client's key.
        settings: The present ones.
        pool: All that can be asked.
        lam: The trade-off of requests that name none; None for that of the settings.
        at: When it came, seconds since 1970.
        to_call: Whether a target will be called.

    Raises:
        RefusalError: It can't be read, or asks for what there isn't.
    """
    envelope = read_envelope(endpoint, body)
    allowed = _targets(key)
    names = [n for n in pool.names if allowed is None or n in allowed]  # others aren't even told
    wishes = read_wishes(headers, names)
    asked = parse_model(envelope.model, targets=names, names=settings.routing.names)
    scored = wishes.scored or settings.routing.scored
    if asked.target is not None:
        question = _named(envelope, wishes, asked.target, key, at=at, to_call=to_call)
        kept = scored_prompt(envelope, scored) if settings.receipts.prompts else None
        envelope.forget()
        return Incoming(envelope=envelope, question=question, prompt=kept, scored=scored)
    prompt = scored_prompt(envelope, scored)
    question = Question(
        endpoint=endpoint,
        at=at,
        text_bytes=envelope.text_bytes,
        scored_bytes=0 if prompt is None else _bytes(prompt),
        needs=envelope.needs,
        max_tokens=envelope.max_tokens,
        session=session_name(
            settings.sessions,
            header=wishes.session,
            hint=envelope.session_hint,
            key_turns=envelope.key_turns,
            key=None if key is None else key.name,
        ),
        opening=wishes.session is None and len(envelope.turns) == len(envelope.key_turns),
        in_tool_loop=envelope.in_tool_loop,
        tool_call_ids=envelope.tool_call_ids,
        previous_response_id=envelope.previous_response_id,
        lam_asked=_lam(wishes, asked, lam),
        max_cost=wishes.max_cost,
        allow=wishes.allow,
        exclude=wishes.exclude,
        key=None if key is None else key.name,
        key_targets=_targets(key),
        to_call=to_call,
    )
    envelope.forget()
    return Incoming(envelope=envelope, question=question, prompt=prompt, scored=scored)


def query_of(scope: Scope) -> bytes:
    """What a request's address has behind its question mark, as a target may be sent it."""
    query: bytes = scope["query_string"]
    return _odd(lambda found: b"%%%02X" % found[0][0], query) if query else b""


def _named(
    envelope: Envelope,
    wishes: Wishes,
    target: str,
    key: ClientKey | None,
    *,
    at: float,
    to_call: bool,
) -> Question:
    """What is known of a request that names its target; of its text only how long it is."""
    return Question(
        endpoint=envelope.endpoint,
        at=at,
        text_bytes=envelope.text_bytes,
        max_tokens=envelope.max_tokens,
        previous_response_id=envelope.previous_response_id,
        named=target,
        max_cost=wishes.max_cost,
        allow=wishes.allow,
        exclude=wishes.exclude,
        key=None if key is None else key.name,
        key_targets=_targets(key),
        to_call=to_call,
    )


def _targets(key: ClientKey | None) -> frozenset[str] | None:
    return None if key is None or key.targets is None else frozenset(key.targets)


def _lam(wishes: Wishes, asked: Asked, lam: float | None) -> float | None:
    if wishes.lam is not None:
        return wishes.lam
    return lam if asked.lam is None else asked.lam


def _bytes(prompt: Prompt) -> int:
    text = prompt_text(prompt)
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
