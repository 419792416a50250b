"""What ends a call without an answer: what a target's failure means, and what clients are told.

A failure means to try again, to ask the next target, or to pass it on. Where there is no answer, or
no more of one, the client is told so, never in a target's words.
"""

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from prefill_router.client import ErrorBody, kind_of, read_error, retry_after
from prefill_router.errors import FailureKind
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.proxy.response_metadata import parsed
from prefill_router.gateway.records import AttemptEnd, Header, TargetAttempt
from prefill_router.targets import Endpoint

RETRIED: frozenset[AttemptEnd] = frozenset(
    ("connect", "rate_limited", "overloaded", "server_error", "broken_off", "malformed")
)
"""After these the same target may be asked again; after a time limit, waiting again costs more."""
HARMLESS: frozenset[AttemptEnd] = frozenset(("refused", "context_too_long", "unknown_call"))
"""These say that a target is well: it read the request."""
LATE: frozenset[AttemptEnd] = frozenset(("first_token_timeout", "silence", "answer_timeout"))

_CLIENTS_OWN = frozenset((400, 406, 413, 414, 415, 422, 431, 451))
_ENDS: dict[FailureKind, AttemptEnd] = {
    "unauthorised": "unauthorised",
    "unknown_model": "unknown_model",
    "context_too_long": "context_too_long",
    "rate_limited": "rate_limited",
    "overloaded": "overloaded",
    "content_filter": "refused",
    "refused": "refused",
}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRefusal:
    """An error that a target told, whole.

    Attributes:
        status: Its HTTP status.
        headers: Its headers.
        body: Its body.
    """

    status: int
    headers: list[Header]
    body: bytes


@final
class AttemptFailedError(Exception):
    """A target gave no answer.

    Attributes:
        end: Why.
        status: Of its reply; None where none came.
        wait: Seconds after which to ask again, as it said; None where it didn't.
        refusal: Its reply, where that is the client's concern.
    """

    def __init__(
        self,
        end: AttemptEnd,
        *,
        status: int | None = None,
        wait: float | None = None,
        refusal: TargetRefusal | None = None,
    ) -> None:
        super().__init__(end)
        self.end: AttemptEnd = end
        self.status, self.wait, self.refusal = status, wait, refusal


def classify_refusal(refusal: TargetRefusal, *, key: str | None) -> AttemptFailedError:
    """What a reply that is no answer means.

    Args:
        refusal: The reply.
        key: The target's key; a reply that quotes it is never passed on.
    """
    status = refusal.status
    error = read_error(parsed(refusal.body.strip()) or {})
    end = _ENDS.get(kind_of(error, status), "server_error")
    if end == "refused" and status not in _CLIENTS_OWN:
        end = "malformed"
    elif end in HARMLESS and key is not None and key.encode() in refusal.body:
        end = "unauthorised"
    return AttemptFailedError(
        end,
        status=status,
        wait=refused_wait(error, refusal.headers) if end in RETRIED else None,
        refusal=refusal if end in HARMLESS else None,
    )


def classify_body_error(error: ErrorBody, *, status: int) -> AttemptFailedError:
    """What an error within a reply means that began as an answer."""
    end = stream_error_end(error)
    return AttemptFailedError(
        "server_error" if end in HARMLESS else end, status=status, wait=refused_wait(error, ())
    )


def stream_error_end(error: ErrorBody) -> AttemptEnd:
    """How an error within an answer ends it."""
    return _ENDS.get(kind_of(error, error.status), "server_error")


def refused_wait(error: ErrorBody, headers: Iterable[Header]) -> float | None:
    """Seconds after which to ask again, as a refusal says; None where it doesn't."""
    said = dict(error.headers or {})
    said |= {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return retry_after(said, now=time.time())


_CODE = "stream_cut"
_NO_RETRY = {"x-should-retry": "false"}
"""What keeps SDKs from asking again at once: the gateway has done so already."""
_WHY: dict[AttemptEnd, str] = {
    "silence": "the target sent nothing for too long",
    "answer_timeout": "the target took too long",
    "malformed": "the target sent what can't be read",
    "disconnected": "the gateway is being stopped",
}


def no_answer_error(attempts: Sequence[TargetAttempt], *, wait: float | None) -> RefusalError:
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
