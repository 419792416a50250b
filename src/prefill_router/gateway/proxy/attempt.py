"""One call of one target, up to where its answer begins: from then on there is no way back.

And what a failure of a target means for the call: try again, ask the next, or pass it on.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import final

from prefill_router.client import ErrorBody, kind_of, read_error, retry_after
from prefill_router.client.keys import forms_of_key, without_key
from prefill_router.errors import FailureKind
from prefill_router.gateway.proxy.call import (
    BrokenResponseError,
    ClientConnection,
    ForwardRequest,
    Header,
    ResponseStream,
)
from prefill_router.gateway.proxy.provider_endpoints import ProviderEndpoint
from prefill_router.gateway.proxy.response_metadata import ResponseMetadata, parsed
from prefill_router.gateway.proxy.stream_observer import PassthroughStream, StreamObserver
from prefill_router.gateway.records import AttemptEnd

_LONGEST = 2**26  # bytes of a reply in one piece
_LONGEST_ERROR = 2**20
_LONGEST_PARSED = 2**20  # parsing more would hold up everybody else
_LONGEST_PRELUDE = 2**20  # of lines before the first event of a stream
_FIRST_GOOD, _FIRST_ODD = 200, 300


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenResponse:
    """An answer that has begun.

    Attributes:
        status: Its HTTP status.
        headers: Its headers.
        facts: What is known of it so far.
        body: All of it; of a stream, what has come.
        arrival: The rest of a stream; None where there is none.
        watch: Looks at that.
    """

    status: int
    headers: list[Header]
    facts: ResponseMetadata
    body: bytes
    arrival: ResponseStream | None = None
    watch: StreamObserver | PassthroughStream | None = None


async def open_answer(
    call: ForwardRequest, target: str, line: ProviderEndpoint, client: ClientConnection
) -> OpenResponse:
    """Ask a target, and wait until its answer has begun, or has come as a whole.

    Raises:
        AttemptFailedError: There is none.
        ClientGoneError: The client has left.
    """
    arrival: ResponseStream | None = None
    opened: OpenResponse | None = None
    try:
        arrival = await line.call(call, call.bodies(target), client=client)
        opened = await _read(call, arrival, line.key)
    except BrokenResponseError as error:
        status = (arrival.status or None) if arrival is not None else None
        raise AttemptFailedError(error.end, status=status) from None
    finally:
        if arrival is not None and (opened is None or opened.arrival is None):
            client.stop_with(None)
            arrival.close()
    return opened


async def _read(call: ForwardRequest, arrival: ResponseStream, key: str | None) -> OpenResponse:
    status = arrival.status
    kind = encoding = b""
    for name, value in arrival.headers:
        if name == b"content-type":
            kind = value.lower()
        elif name == b"content-encoding":
            encoding = value.lower()
    if not _FIRST_GOOD <= status < _FIRST_ODD:
        body = await _read_error(arrival)
        refusal = TargetRefusal(status=status, headers=arrival.headers, body=body)
        if call.is_plain:
            raise classify_passthrough_refusal(refusal, key=key, lacking=call.lacking)
        raise classify_refusal(refusal, key=key)
    if b"html" in kind or encoding not in (b"", b"identity"):  # what nobody asked for
        raise AttemptFailedError("malformed", status=status)
    if call.is_plain:
        return await _open_plain(call, arrival, key, stream=b"event-stream" in kind)
    if b"event-stream" in kind:
        return await _open_stream(call, arrival, key)
    return await _read_whole(call, arrival, key)


async def _open_plain(
    call: ForwardRequest, arrival: ResponseStream, key: str | None, *, stream: bool
) -> OpenResponse:
    """Of what was asked for before, errors are part of the answer; it may also be empty.

    Since it may be an error, it may quote the target's key: then it isn't passed on.
    """
    facts, secret = (
        ResponseMetadata(call.endpoint, secret=key),
        None if key is None else key.encode(),
    )
    if stream:
        return OpenResponse(
            status=arrival.status,
            headers=arrival.headers,
            facts=facts,
            body=b"",
            arrival=arrival,
            watch=PassthroughStream(facts, secret=secret),
        )
    body = await _read_all(arrival)
    if secret is not None and secret in body:
        raise AttemptFailedError("unauthorised", status=arrival.status)
    facts.done = True
    return OpenResponse(status=arrival.status, headers=arrival.headers, facts=facts, body=body)


async def _open_stream(
    call: ForwardRequest, arrival: ResponseStream, key: str | None
) -> OpenResponse:
    watch = StreamObserver(call.endpoint, leave_out_usage=call.usage_added, secret=key)
    facts, held, length = watch.facts, list[bytes](), 0
    while not watch.is_open:
        piece = await arrival.piece()
        held.append(watch.feed(piece) if piece else watch.close())
        length += len(held[-1])
        if facts.error is not None and not watch.is_open:
            raise classify_body_error(facts.error, status=arrival.status)
        is_odd = watch.is_malformed or facts.done or length > _LONGEST_PRELUDE
        if is_odd and not watch.is_open:
            raise AttemptFailedError("malformed", status=arrival.status)
        if not piece and not watch.is_open:
            raise AttemptFailedError("broken_off", status=arrival.status)
    return OpenResponse(
        status=arrival.status,
        headers=arrival.headers,
        facts=facts,
        body=b"".join(held),
        arrival=arrival,
        watch=watch,
    )


async def _read_whole(
    call: ForwardRequest, arrival: ResponseStream, key: str | None
) -> OpenResponse:
    body = await _read_all(arrival)
    facts = ResponseMetadata(call.endpoint, secret=key)
    if len(body) > _LONGEST_PARSED:
        if not (body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}"):
            raise AttemptFailedError("malformed", status=arrival.status)
        facts.take_end(body)
    else:
        value = parsed(body)
        if value is None:
            raise AttemptFailedError("malformed", status=arrival.status)
        facts.take(value)
    if facts.error is not None:
        raise classify_body_error(facts.error, status=arrival.status)
    facts.done = True
    if not facts.has_usage:
        facts.count(body)
    given = without_key(body, forms_of_key(key))
    return OpenResponse(status=arrival.status, headers=arrival.headers, facts=facts, body=given)


async def _read_all(arrival: ResponseStream) -> bytes:
    piece = await arrival.piece()
    if arrival.over and not arrival.has_more:
        return piece
    pieces, length = [], 0
    while piece:
        pieces.append(piece)
        length += len(piece)
        if length > _LONGEST:
            raise AttemptFailedError("malformed", status=arrival.status)
        piece = await arrival.piece()
    return b"".join(pieces)


async def _read_error(arrival: ResponseStream) -> bytes:
    """As much of an error as comes."""
    pieces, length = [], 0
    try:
        while (piece := await arrival.piece()) and length < _LONGEST_ERROR:
            pieces.append(piece)
            length += len(piece)
    except BrokenResponseError as error:
        if error.end == "disconnected":
            raise
    return b"".join(pieces)


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
        wait=_wait(error, refusal.headers) if end in RETRIED else None,
        refusal=refusal if end in HARMLESS else None,
    )


def classify_passthrough_refusal(
    refusal: TargetRefusal, *, key: str | None, lacking: Collection[int] = frozenset()
) -> AttemptFailedError:
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
    return AttemptFailedError(
        end,
        status=status,
        wait=_wait(ErrorBody(), refusal.headers) if end in RETRIED else None,
        refusal=refusal if end == "refused" else None,
    )


def classify_body_error(error: ErrorBody, *, status: int) -> AttemptFailedError:
    """What an error within a reply means that began as an answer."""
    end = stream_error_end(error)
    return AttemptFailedError(
        "server_error" if end in HARMLESS else end, status=status, wait=_wait(error, ())
    )


def stream_error_end(error: ErrorBody) -> AttemptEnd:
    """How an error within an answer ends it."""
    return _ENDS.get(kind_of(error, error.status), "server_error")


def _wait(error: ErrorBody, headers: Iterable[Header]) -> float | None:
    said = dict(error.headers or {})
    said |= {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return retry_after(said, now=time.time())
