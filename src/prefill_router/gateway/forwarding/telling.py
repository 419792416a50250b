"""What clients are told where there is no answer, or no more of one; never in a target's words."""

import json
import math
from collections.abc import Sequence

from prefill_router.gateway.forwarding.verdicts import LATE
from prefill_router.gateway.outcome import Attempt, AttemptEnd
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.words import Endpoint

_CODE = "stream_cut"
_NO_RETRY = {"x-should-retry": "false"}
"""What keeps SDKs from asking again at once: the gateway has done so already."""
_WHY: dict[AttemptEnd, str] = {
    "silence": "the target sent nothing for too long",
    "answer_timeout": "the target took too long",
    "malformed": "the target sent what can't be read",
    "disconnected": "the gateway is being stopped",
}


def no_answer(attempts: Sequence[Attempt], *, wait: float | None) -> RefusalError:
    """The reply where no target answered.

    Args:
        attempts: What was tried.
        wait: Seconds after which to ask again, as far as targets said.
    """
    ends = {attempt.end for attempt in attempts if attempt.end != "breaker_open"}
    if ends == {"unknown_call"}:
        asked = ", ".join(dict.fromkeys(attempt.target for attempt in attempts))
        return RefusalError(
            f"this call isn't one that {asked} can answer; name a target that can as the model",
            status=404,
            code="unknown_call",
        )
    tried = ", ".join(f"{attempt.target}: {attempt.end}" for attempt in attempts)
    message = f"no target answered ({tried}); ask again later"
    if ends == {"rate_limited"}:
        return RefusalError(
            message,
            status=429,
            kind="rate_limit_error",
            code="no_target_answered",
            headers={"retry-after": str(max(1, math.ceil(wait or 0)))},
        )
    status = 504 if ends and ends <= LATE else 502
    return RefusalError(
        message,
        status=status,
        kind="upstream_error",
        code="no_target_answered",
        headers=_NO_RETRY,
    )


def cut_event(endpoint: Endpoint, end: AttemptEnd, *, number: int) -> bytes:
    """The event that ends a stream which broke off.

    Args:
        endpoint: Whose shape it has.
        end: Why it ends.
        number: Its `sequence_number`, in streams of Responses.
    """
    why = _WHY.get(end, "the target broke off")
    message = f"the answer ends here, unfinished: {why}"
    if endpoint == "responses":
        value = {
            "type": "error",
            "code": _CODE,
            "message": message,
            "param": None,
            "sequence_number": number,
        }
        return _event(value, name=b"event: error\n")
    error = RefusalError(message, status=502, kind="upstream_error", code=_CODE)
    if endpoint == "messages":
        return _event(error.body(anthropic=True), name=b"event: error\n")
    return _event(error.body(), name=b"")


def _event(value: object, *, name: bytes) -> bytes:
    """Behind an empty line, which ends the event that was under way, if there was one."""
    return b"\n" + name + b"data: " + json.dumps(value).encode() + b"\n\n"
