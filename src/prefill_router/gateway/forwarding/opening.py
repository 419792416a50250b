"""One call of one target, up to where its answer begins: from then on there is no way back."""

from dataclasses import dataclass
from typing import final

from prefill_router.gateway.forwarding.arrival import Arrival, BrokenError, Header
from prefill_router.gateway.forwarding.call import Call
from prefill_router.gateway.forwarding.client import Client
from prefill_router.gateway.forwarding.facts import Facts, parsed
from prefill_router.gateway.forwarding.lines import Line
from prefill_router.gateway.forwarding.verdicts import (
    FailedError,
    Refusal,
    declined,
    refused,
    told,
)
from prefill_router.gateway.forwarding.watch import Watch
from prefill_router.gateway.forwarding.whole_lines import WholeLines
from prefill_router.upstream.redaction import forms_of_key, without_key

_LONGEST = 2**26  # bytes of a reply in one piece
_LONGEST_ERROR = 2**20
_LONGEST_PARSED = 2**20  # parsing more would hold up everybody else
_LONGEST_PRELUDE = 2**20  # of lines before the first event of a stream
_FIRST_GOOD, _FIRST_ODD = 200, 300


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
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
    facts: Facts
    body: bytes
    arrival: Arrival | None = None
    watch: Watch | WholeLines | None = None


async def open_answer(call: Call, target: str, line: Line, client: Client) -> Opened:
    """Ask a target, and wait until its answer has begun, or has come as a whole.

    Raises:
        FailedError: There is none.
        GoneError: The client has left.
    """
    arrival: Arrival | None = None
    opened: Opened | None = None
    try:
        arrival = await line.call(call, call.bodies(target), client=client)
        opened = await _read(call, arrival, line.key)
    except BrokenError as error:
        status = (arrival.status or None) if arrival is not None else None
        raise FailedError(error.end, status=status) from None
    finally:
        if arrival is not None and (opened is None or opened.arrival is None):
            client.stop_with(None)
            arrival.close()
    return opened


async def _read(call: Call, arrival: Arrival, key: str | None) -> Opened:
    status = arrival.status
    kind = encoding = b""
    for name, value in arrival.headers:
        if name == b"content-type":
            kind = value.lower()
        elif name == b"content-encoding":
            encoding = value.lower()
    if not _FIRST_GOOD <= status < _FIRST_ODD:
        body = await _read_error(arrival)
        refusal = Refusal(status=status, headers=arrival.headers, body=body)
        if call.is_plain:
            raise declined(refusal, key=key, lacking=call.lacking)
        raise refused(refusal, key=key)
    if b"html" in kind or encoding not in (b"", b"identity"):  # what nobody asked for
        raise FailedError("malformed", status=status)
    if call.is_plain:
        return await _open_plain(call, arrival, key, stream=b"event-stream" in kind)
    if b"event-stream" in kind:
        return await _open_stream(call, arrival, key)
    return await _read_whole(call, arrival, key)


async def _open_plain(call: Call, arrival: Arrival, key: str | None, *, stream: bool) -> Opened:
    """Of what was asked for before, errors are part of the answer; it may also be empty.

    Since it may be an error, it may quote the target's key: then it isn't passed on.
    """
    facts, secret = Facts(call.endpoint, secret=key), None if key is None else key.encode()
    if stream:
        return Opened(
            status=arrival.status,
            headers=arrival.headers,
            facts=facts,
            body=b"",
            arrival=arrival,
            watch=WholeLines(facts, secret=secret),
        )
    body = await _read_all(arrival)
    if secret is not None and secret in body:
        raise FailedError("unauthorised", status=arrival.status)
    facts.done = True
    return Opened(status=arrival.status, headers=arrival.headers, facts=facts, body=body)


async def _open_stream(call: Call, arrival: Arrival, key: str | None) -> Opened:
    watch = Watch(call.endpoint, leave_out_usage=call.usage_added, secret=key)
    facts, held, length = watch.facts, list[bytes](), 0
    while not watch.is_open:
        piece = await arrival.piece()
        held.append(watch.feed(piece) if piece else watch.close())
        length += len(held[-1])
        if facts.error is not None and not watch.is_open:
            raise told(facts.error, status=arrival.status)
        is_odd = watch.is_malformed or facts.done or length > _LONGEST_PRELUDE
        if is_odd and not watch.is_open:
            raise FailedError("malformed", status=arrival.status)
        if not piece and not watch.is_open:
            raise FailedError("broken_off", status=arrival.status)
    return Opened(
        status=arrival.status,
        headers=arrival.headers,
        facts=facts,
        body=b"".join(held),
        arrival=arrival,
        watch=watch,
    )


async def _read_whole(call: Call, arrival: Arrival, key: str | None) -> Opened:
    body = await _read_all(arrival)
    facts = Facts(call.endpoint, secret=key)
    if len(body) > _LONGEST_PARSED:
        if not (body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}"):
            raise FailedError("malformed", status=arrival.status)
        facts.take_end(body)
    else:
        value = parsed(body)
        if value is None:
            raise FailedError("malformed", status=arrival.status)
        facts.take(value)
    if facts.error is not None:
        raise told(facts.error, status=arrival.status)
    facts.done = True
    if not facts.has_usage:
        facts.count(body)
    given = without_key(body, forms_of_key(key))
    return Opened(status=arrival.status, headers=arrival.headers, facts=facts, body=given)


async def _read_all(arrival: Arrival) -> bytes:
    piece = await arrival.piece()
    if arrival.over and not arrival.has_more:
        return piece
    pieces, length = [], 0
    while piece:
        pieces.append(piece)
        length += len(piece)
        if length > _LONGEST:
            raise FailedError("malformed", status=arrival.status)
        piece = await arrival.piece()
    return b"".join(pieces)


async def _read_error(arrival: Arrival) -> bytes:
    """As much of an error as comes."""
    pieces, length = [], 0
    try:
        while (piece := await arrival.piece()) and length < _LONGEST_ERROR:
            pieces.append(piece)
            length += len(piece)
    except BrokenError as error:
        if error.end == "disconnected":
            raise
    return b"".join(pieces)
