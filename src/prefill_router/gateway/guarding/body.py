"""Reading a request's body: so much of it, in so much time."""

import asyncio

from starlette.types import Message, Receive

from prefill_router.gateway.guarding.head import too_long
from prefill_router.gateway.guarding.room import Held
from prefill_router.gateway.refusal import RefusalError


async def read_body(
    receive: Receive, *, most_bytes: int, seconds: float, held: Held
) -> bytes | None:
    """The whole body; None where the client left before its end.

    Args:
        receive: Of ASGI.
        most_bytes: It may be so long.
        seconds: And take so long.
        held: Counts what has come of it.

    Raises:
        RefusalError: 413, it is too long; 408, it took too long; 503, there is no room for it.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _read(receive, most_bytes, held)
    except TimeoutError:
        raise RefusalError(
            f"the body didn't come within {seconds:g} seconds; send it faster, or less of it",
            status=408,
            code="body_timeout",
            headers={"connection": "close"},  # what is still on its way is no request
        ) from None


async def _read(receive: Receive, most_bytes: int, held: Held) -> bytes | None:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        size += len(piece)
        if size > most_bytes:
            raise too_long(most_bytes)
        held.add(len(piece))
        if not message.get("more_body", False):
            return b"".join((*pieces, piece)) if pieces else piece
        pieces.append(piece)


def check_items(body: bytes, *, most: int) -> None:
    """Check that a body of JSON isn't in so many pieces that reading it holds everybody up.

    A text, an object and a list are one each, its name and its value two; of plain numbers, which
    are read in no time, ten count as one. What looks like JSON within a text isn't counted.

    Raises:
        RefusalError: 413, it has more.
    """
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= most // 2:
        return  # each value but the first follows one of these
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # a quote now begins or ends a text
    texts = bare.count(b'"') // 2
    if texts <= most:
        between = b"".join(bare.split(b'"')[::2])
        count = texts + between.count(b"{") + between.count(b"[") + between.count(b",") // 10
        if count <= most:
            return
    raise RefusalError(
        f"the body has more than {most} texts, objects and lists (limits.body_items); send fewer",
        status=413,
        code="body_too_many_items",
    )


def with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives this body first, in one piece, and then goes on."""
    waiting = [body]  # emptied once given: a stream may go on for long, and needs it no more

    async def read() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return read
