"""Classifies failures of targets, and makes the errors that clients get.

After a failure the gateway retries, calls the next target, or forwards the error. Where there is no
answer, or it broke off, the client's error never quotes a target's message.
"""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from prefill_router.endpoints import (
    Callee,
    ErrorBody,
    FailedCall,
    FailureCause,
    Words,
    kind_of,
    parse_error,
    refusal_cause,
    retry_after,
)
from prefill_router.errors import FailureKind
from prefill_router.targets import Endpoint
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.protocol import LIMIT_NAMES
from prefill_router_gateway.records import AttemptEnd, Header, TargetAttempt

RETRIED: frozenset[AttemptEnd] = frozenset(
    ("connect", "rate_limited", "overloaded", "server_error", "broken_off", "malformed")
)
"""Failures after which the same target is retried; not timeouts, where waiting again costs more."""
OF_ONE_TARGET: frozenset[AttemptEnd] = frozenset(("context_too_long", "unsupported"))
"""What one target can't do and the next one perhaps can."""
HARMLESS: frozenset[AttemptEnd] = OF_ONE_TARGET | {"refused", "unknown_call"}
"""Failures that show that the target works, since it read the request."""
LATE: frozenset[AttemptEnd] = frozenset(("first_token_timeout", "silence", "answer_timeout"))

FAILURE_WORDS: Mapping[str, Words] = {
    "silence": ("sent nothing for too long", "raise silence_seconds"),
    "unknown_call": (
        "doesn't support this call",
        "leave it out of serves in the pool file, or name a target that supports it",
    ),
    "malformed": ("sent something other than an answer", "check its base_url and dialect"),
    "breaker_open": ("isn't called, since it failed again and again", "see its last failure"),
    "disconnected": ("had no time to answer, since the gateway is stopping", "try again"),
}
"""What to say of failures that only a proxy has, or says in other words."""
_TARGET = Callee(subject="it", words=FAILURE_WORDS)

_CLIENTS_OWN = frozenset((400, 406, 413, 414, 415, 422, 431, 451))
_LACKING = frozenset((405, 501))
"""The statuses by which a target says that it doesn't support the call."""
_LIKE_ANY_CALL = frozenset((401, 402, 403, 429, 503, 529))
"""The statuses that mean the same for passthrough calls as for all others."""
_LIMIT = r"(max_tokens|max_completion_tokens)(?!\w)"
_REFUSED_LIMIT = re.compile(
    rf"(?i:un(?:supported|known|recogni[sz]ed|expected)[ \w]{{0,40}}[:'\"` ]+{_LIMIT})"
    rf"|(?<!\w){_LIMIT}['\"`]? is(?: not|n't) (?:supported|permitted|allowed)"
)
_FIRST_OF_CLIENTS, _FIRST_OF_SERVERS = 400, 500


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRefusal:
    """A target's complete error response.

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
        end: The kind of failure.
        status: The HTTP status of its response; None without one.
        wait: Seconds to wait before a retry, as the target asks; None where it doesn't.
        refusal: The target's response, where only the client can resolve the error.
        rename: The request's field for the most output tokens, and what the target calls it; None
            where it takes the name.
        cause: What else is known of the failure.
        location: Where a redirect leads.
        encoding: How a body is compressed that can't be read.
    """

    def __init__(
        self,
        end: AttemptEnd,
        *,
        cause: FailureCause | None = None,
        location: str | None = None,
        status: int | None = None,
        wait: float | None = None,
        refusal: TargetRefusal | None = None,
        rename: tuple[str, str] | None = None,
        encoding: str | None = None,
    ) -> None:
        super().__init__(end)
        self.end: AttemptEnd = end
        self.status, self.wait, self.refusal = status, wait, refusal
        self.cause, self.location, self.rename = cause, location, rename
        self.encoding = encoding


def attempt_end(kind: FailureKind) -> AttemptEnd:
    """An endpoint's failure in the words of receipts, which distinguish less."""
    match kind:
        case "connect_timeout":
            return "connect"
        case "content_filter":
            return "refused"
        case "empty":
            return "malformed"
    return kind


def classify_refusal(refusal: TargetRefusal, *, key: str | None) -> AttemptFailedError:
    """Classify an error response.

    Args:
        refusal: The response.
        key: The target's key; a response that quotes it is never forwarded.
    """
    status = refusal.status
    error = parse_error(refusal.body)
    end = attempt_end(kind_of(error, status))
    if status in _LACKING:
        end = "unknown_call"
    elif end == "refused" and status not in _CLIENTS_OWN:
        end = "malformed"
    quotes = key is not None and quotes_key(refusal.body, key)
    if end in HARMLESS and quotes:
        end = "unauthorised"
    headers = {name: value.decode("latin-1") for name, value in refusal.headers}
    return AttemptFailedError(
        end,
        cause=refusal_cause(status, headers.get(b"content-type", "")),
        location=headers.get(b"location"),
        status=status,
        wait=refused_wait(error, refusal.headers) if end in RETRIED else None,
        refusal=refusal if end in HARMLESS or (end == "rate_limited" and not quotes) else None,
        rename=_other_name(error.words) if end == "unsupported" else None,
    )


def _other_name(words: str) -> tuple[str, str] | None:
    """The name of a limit that a target refuses, and the one that it takes instead."""
    match = _REFUSED_LIMIT.search(words)
    if match is None:
        return None
    name = match[1] or match[2]
    return name, LIMIT_NAMES[name == LIMIT_NAMES[0]]


def quotes_key(body: bytes, key: str) -> bool:
    """Whether a response quotes a key, written in whatever way JSON allows."""
    if key.encode() in body:
        return True
    try:
        return b"\\" in body and key in json.dumps(json.loads(body), ensure_ascii=False)
    except RecursionError:
        return True
    except ValueError:
        return False


def classify_passthrough_refusal(
    refusal: TargetRefusal, *, key: str | None, lacking: Collection[int] = frozenset()
) -> AttemptFailedError:
    """Classify an error response to a passthrough call by its status alone.

    Args:
        refusal: The response.
        key: The target's key; a response that quotes it is never forwarded.
        lacking: The statuses by which a target says that it doesn't support the call.
    """
    status = refusal.status
    end: AttemptEnd
    if status in lacking:
        end = "unknown_call"
    elif status in _LIKE_ANY_CALL:
        end = attempt_end(kind_of(ErrorBody(), status))
    elif _FIRST_OF_CLIENTS <= status < _FIRST_OF_SERVERS:
        quotes = key is not None and quotes_key(refusal.body, key)
        end = "unauthorised" if quotes else "refused"
    else:
        end = "server_error" if status >= _FIRST_OF_SERVERS else "malformed"
    return AttemptFailedError(
        end,
        status=status,
        wait=refused_wait(ErrorBody(), refusal.headers) if end in RETRIED else None,
        refusal=refusal if end == "refused" else None,
    )


def classify_body_error(error: ErrorBody, *, status: int) -> AttemptFailedError:
    """Classify an error within a response that has a success status."""
    end = stream_error_end(error)
    return AttemptFailedError(
        "server_error" if end in HARMLESS else end, status=status, wait=refused_wait(error, ())
    )


def stream_error_end(error: ErrorBody) -> AttemptEnd:
    """The kind of failure of an error within a stream."""
    return attempt_end(kind_of(error, error.status))


def refused_wait(error: ErrorBody, headers: Iterable[Header]) -> float | None:
    """Seconds to wait before a retry, as a refusal asks; None where it doesn't."""
    fields = dict(error.headers or {})
    fields |= {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return retry_after(fields, now=time.time())


_CODE = "stream_cut"
_NO_RETRY = {"x-should-retry": "false"}
"""Keeps SDKs from retrying at once, since the gateway has retried already."""
_WHY: dict[AttemptEnd, str] = {
    "silence": "the target sent nothing for too long",
    "answer_timeout": "the target took too long",
    "malformed": "the target sent data that can't be read",
    "disconnected": "the gateway is stopping",
}


def no_answer_error(attempts: Sequence[TargetAttempt], *, wait: float | None) -> RefusalError:
    """The error where no target answered.

    Args:
        attempts: The attempts.
        wait: Seconds to wait before a retry, as targets ask; None where none does.
    """
    ends = {attempt.end for attempt in attempts if attempt.end != "breaker_open"}
    if ends == {"unknown_call"}:
        targets = ", ".join(dict.fromkeys(attempt.target for attempt in attempts))
        return RefusalError(
            f"{targets} can't answer this call; name a target that can as the model",
            status=404,
            code="unknown_call",
        )
    counts = Counter(map(_say_failure, attempts))
    tried = "; ".join(f"{event}{f', {n} times' if n > 1 else ''}" for event, n in counts.items())
    seconds = max(1, math.ceil(wait or 0))
    able = dict.fromkeys(a.target for a in attempts if a.end not in OF_ONE_TARGET)
    only = f"; only {' and '.join(able)} may answer it" if ends & OF_ONE_TARGET and able else ""
    message = f"no target answered: {tried}{only}"
    busy = ends - OF_ONE_TARGET  # the others never answer it, so what counts is when these do
    if busy == {"rate_limited"} or (wait is not None and busy <= {"rate_limited", "overloaded"}):
        is_limited = ends == {"rate_limited"}
        return RefusalError(
            f"{message}; try again in {seconds} s",
            status=429 if is_limited else 503,
            kind="rate_limit_error" if is_limited else "upstream_error",
            code="no_target_answered",
            headers={"retry-after": str(seconds)},
        )
    status = 504 if ends and ends <= LATE else 502
    return RefusalError(
        f"{message}; if it goes on, ask whoever runs the gateway",
        status=status,
        kind="upstream_error",
        code="no_target_answered",
        headers=_NO_RETRY,
    )


def _say_failure(attempt: TargetAttempt) -> str:
    """What came of a call, without the endpoint's address, which clients needn't know."""
    cause = None if attempt.status is None else refusal_cause(attempt.status, "")
    failed = FailedCall(kind=attempt.end, cause=cause, status=attempt.status)
    return f"{attempt.target} {_TARGET.say_event(failed)}"


def cut_event(endpoint: Endpoint, end: AttemptEnd, *, number: int) -> bytes:
    """The event that ends a stream that broke off.

    Args:
        endpoint: The endpoint, which determines its format.
        end: The kind of failure.
        number: Its `sequence_number`, in streams of Responses.
    """
    why = _WHY.get(end, "the target broke off")
    message = f"the answer ends here, unfinished: {why}"
    error = RefusalError(message, status=502, kind="upstream_error", code=_CODE)
    return error_event(endpoint, error, number=number)


def error_event(endpoint: Endpoint, error: RefusalError, *, number: int = 0) -> bytes:
    """An error within a stream, which ends it.

    Args:
        endpoint: The endpoint, which determines its format.
        error: The error.
        number: Its `sequence_number`, in streams of Responses.
    """
    if endpoint == "responses":
        value = {"type": "error", "code": error.code, "message": str(error), "param": error.param}
        return _event({**value, "sequence_number": number}, name=b"event: error\n")
    if endpoint == "messages":
        return _event(error.body(anthropic=True), name=b"event: error\n")
    return _event(error.body(), name=b"")


def refusal_event(endpoint: Endpoint, refusal: TargetRefusal) -> bytes:
    """A target's refusal as an event of a stream that has begun; its words are the target's."""
    error = parse_error(refusal.body)
    stream_error = RefusalError(
        error.words or "the target refused the request",
        status=refusal.status,
        kind=error.kind or "invalid_request_error",
        code=error.code or None,
    )
    return error_event(endpoint, stream_error)


def _event(value: object, *, name: bytes) -> bytes:
    """An event after an empty line, which ends any incomplete event before it."""
    return b"\n" + name + b"data: " + json.dumps(value).encode() + b"\n\n"
