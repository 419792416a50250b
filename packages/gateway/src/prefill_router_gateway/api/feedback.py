"""Scores of answers, of people's turns, and of whole conversations."""

import asyncio
import time
from typing import Annotated, final

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from prefill_router.errors import DataError, StoreError
from prefill_router_gateway.decide import session_name
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import ClientKey
from prefill_router_gateway.receipts import Feedback, PersonTurn, is_recorded, turns_of
from prefill_router_gateway.runtime import Gateway

_Name = Annotated[str, Field(min_length=1, max_length=200)]


@final
class FeedbackBody(BaseModel):
    """A score of an answer, of a turn, or of a whole conversation.

    Attributes:
        id: The decision's id, from the response headers; that of any request of a turn.
        conversation: The conversation instead, by the name that its client gives it, or that it
            has in receipts.
        turn: Only this turn of the conversation: the agent's name of it, or `last`.
        score: From 0 (wrong) to 1 (right).
        source: Who gave the score; the latest score of each source counts.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    id: _Name | None = None
    conversation: _Name | None = None
    turn: _Name | None = None
    score: Annotated[float, Field(ge=0, le=1)]
    source: Annotated[str, Field(min_length=1, max_length=200)] = "user"


async def take_feedback(
    gateway: Gateway, body: FeedbackBody, key: ClientKey | None
) -> JSONResponse:
    """Keep a score; that of a turn or a conversation is kept for the decision of each turn.

    Args:
        gateway: The gateway.
        body: The score, and what it is of.
        key: The client's key.

    Raises:
        RefusalError: It names both or neither of a decision and a conversation, or one that the key
            doesn't have, or receipts can't be read now.
    """
    at = time.time()
    if body.id is not None and body.conversation is None and body.turn is None:
        if not await _may_score(gateway, body.id, key):
            raise _unknown_decision()
        scores = [_score(body, body.id, at)]
    elif body.conversation is not None and body.id is None:
        turns = await _find_turns(gateway, body.conversation, body.turn, key)
        if not turns:
            raise _unknown_conversation()
        shared = None if body.turn is not None else turns[0].conversation
        scores = [_score(body, turn.ids[0], at, shared) for turn in turns]
    else:
        raise RefusalError(
            "the feedback must be of one answer (give id), of a conversation (give "
            "conversation) or of one turn (give conversation and turn); send one of these",
            param="id",
        )
    are_kept = await asyncio.gather(*(gateway.writer.keep(score) for score in scores))
    for _ in filter(None, are_kept):
        gateway.metrics.count_score(body.score)
    ids = {"id": body.id} if body.id is not None else {"turns": [score.id for score in scores]}
    is_kept = all(are_kept)
    return JSONResponse({**ids, "kept": is_kept}, status_code=200 if is_kept else 503)


def _score(
    body: FeedbackBody, decision: str, at: float, conversation: str | None = None
) -> Feedback:
    try:
        return Feedback(
            id=decision,
            score=body.score,
            source=body.source,
            at=at,
            conversation=conversation,
        )
    except DataError as error:
        raise RefusalError(str(error)) from None


def _unknown_decision() -> RefusalError:
    return RefusalError(
        "your key has no such decision; its id is in the response headers",
        status=404,
        code="unknown_decision",
        param="id",
    )


def _unknown_conversation() -> RefusalError:
    return RefusalError(
        "your key has no such conversation, or no such turn of it; give the name that the client "
        "sends, or the one in receipts",
        status=404,
        code="unknown_conversation",
        param="conversation",
    )


async def _find_turns(
    gateway: Gateway, conversation: str, turn: str | None, key: ClientKey | None
) -> list[PersonTurn]:
    """The turns of a conversation of the key's, by any of the names that it may have."""
    settings, owner = gateway.settings.sessions, None if key is None else key.name
    candidates = [
        conversation,
        session_name(settings, header=conversation, hint=None, key_turns=(), key=owner),
        session_name(
            settings, header=None, hint=None, key_turns=(), key=owner, conversation=conversation
        ),
    ]
    whose = None if key is None or key.admin else key.name
    names = [name for name in candidates if name is not None and name.isprintable()]
    try:
        return await asyncio.to_thread(turns_of, gateway.receipts_url, names, key=whose, turn=turn)
    except StoreError:
        raise RefusalError.unavailable("receipts can't be read now; try again later") from None


async def _may_score(gateway: Gateway, decision: str, key: ClientKey | None) -> bool:
    """Whether a decision has a receipt and the client may score it.

    A key may score its own decisions, an admin key all of them. Looking up another key's decision
    takes as long as looking up one that doesn't exist, so that timing reveals nothing.

    Raises:
        RefusalError: Receipts can't be read now. Admins, and clients of a gateway without keys,
            may then score any id.
    """
    owner = None if key is None or key.admin else key.name
    recent = gateway.recent.find(decision)
    if recent is not None and owner in (None, recent.key):
        return True
    try:
        if not gateway.writer.healthy:
            raise StoreError("the receipts' database isn't available")
        return await asyncio.to_thread(is_recorded, gateway.receipts_url, decision, key=owner)
    except StoreError:
        if owner is None:
            return True
        raise RefusalError.unavailable(
            "receipts can't be read now, so the decision's key is unknown; try again later"
        ) from None
