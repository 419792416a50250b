"""What a failure of a target means for the call: try again, ask the next, or pass it on."""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import final

from prefill_router.errors import FailureKind
from prefill_router.gateway.forwarding.arrival import Header
from prefill_router.gateway.forwarding.facts import parsed
from prefill_router.gateway.outcome import AttemptEnd
from prefill_router.upstream import ErrorBody, kind_of, read_error, retry_after

RETRIED: frozenset[AttemptEnd] = frozenset(
    ("connect", "rate_limited", "overloaded", "server_error", "broken_off", "malformed")
)
"""After these the same target may be asked again; after a time limit, waiting again costs more."""
HARMLESS: frozenset[AttemptEnd] = frozenset(("refused", "context_too_long", "unknown_call"))
"""These say that a target is well: it read the request."""
LATE: frozenset[AttemptEnd] = frozenset(("first_token_timeout", "silence", "answer_timeout"))

_FIRST_OF_CLIENTS, _FIRST_OF_SERVERS = 400, 500
_PLAIN_ENDS: dict[int, AttemptEnd] = {
    401: "unauthorised",  # it is the gateway's own key that is wrong, or its account
    402: "unauthorised",
    403: "unauthorised",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
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
class Refusal:
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
class FailedError(Exception):
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
        refusal: Refusal | None = None,
    ) -> None:
        super().__init__(end)
        self.end: AttemptEnd = end
        self.status, self.wait, self.refusal = status, wait, refusal


def refused(refusal: Refusal, *, key: str | None) -> FailedError:
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
    return FailedError(
        end,
        status=status,
        wait=_wait(error, refusal.headers) if end in RETRIED else None,
        refusal=refusal if end in HARMLESS else None,
    )


def declined(
    refusal: Refusal, *, key: str | None, lacking: Collection[int] = frozenset()
) -> FailedError:
    """The same of a plain call, of whose reply nothing but the status is read.

    Args:
        refusal: The reply.
        key: The target's key; a reply that quotes it is never passed on.
        lacking: The statuses of targets that have no such call.
    """
    status = refusal.status
    end: AttemptEnd
    if status in lacking:
        end = "unknown_call"
    elif status in _PLAIN_ENDS:
        end = _PLAIN_ENDS[status]
    elif _FIRST_OF_CLIENTS <= status < _FIRST_OF_SERVERS:
        quotes = key is not None and key.encode() in refusal.body
        end = "unauthorised" if quotes else "refused"
    else:
        end = "server_error" if status >= _FIRST_OF_SERVERS else "malformed"
    return FailedError(
        end,
        status=status,
        wait=_wait(ErrorBody(), refusal.headers) if end in RETRIED else None,
        refusal=refusal if end == "refused" else None,
    )


def told(error: ErrorBody, *, status: int) -> FailedError:
    """What an error within a reply means that began as an answer."""
    end = end_of(error)
    return FailedError(
        "server_error" if end in HARMLESS else end, status=status, wait=_wait(error, ())
    )


def end_of(error: ErrorBody) -> AttemptEnd:
    """How an error within an answer ends it."""
    return _ENDS.get(kind_of(error, error.status), "server_error")


def _wait(error: ErrorBody, headers: Iterable[Header]) -> float | None:
    said = dict(error.headers or {})
    said |= {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return retry_after(said, now=time.time())
