"""What of a request the encoder reads."""

from prefill_router.data import Message, Prompt
from prefill_router.gateway.protocol.envelope import Envelope
from prefill_router.gateway.words import Scored


def scored_prompt(envelope: Envelope, scored: Scored) -> Prompt | None:
    """What the encoder reads of a request; None where it has no text to read.

    What is but one turn of the user is given as its text, whatever was asked for: encoders read
    both alike, and one forecast serves both.

    Args:
        envelope: The request. Of several texts to complete or to embed at once none is read.
        scored: Which turns. The last turn of the user is the last that has text.
    """
    turns = envelope.turns
    if envelope.endpoint in ("completions", "embeddings"):
        return _prompt(turns) if len(turns) == 1 else None
    with_system = scored in ("last_user_with_system", "conversation_with_system")
    if scored in ("last_user", "last_user_with_system"):
        last = _last_user(turns)
        if last is None:
            return None
        if not with_system:
            return last.content
        turns = (*(turn for turn in turns if turn.role == "system"), last)
    return _prompt(tuple(turn for turn in turns if with_system or turn.role != "system"))


def _last_user(turns: tuple[Message, ...]) -> Message | None:
    said = (turn for turn in reversed(turns) if turn.role == "user" and _has_text(turn))
    return next(said, None)


def _prompt(turns: tuple[Message, ...]) -> Prompt | None:
    told = tuple(turn for turn in turns if _has_text(turn))
    if not told:
        return None
    return told[0].content if len(told) == 1 and told[0].role == "user" else told


def _has_text(turn: Message) -> bool:
    return bool(turn.content) and not turn.content.isspace()
