"""What goes back to clients: refusals, and headers that every reply has or lacks."""

import json
from collections.abc import Awaitable
from typing import final

from starlette.types import Message, Send

from prefill_router.gateway.refusal import RefusalError

Header = tuple[bytes, bytes]

PAGE_HEADERS: tuple[Header, ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Of every reply but those of `/v1`."""
_PAGE_NAMES = frozenset(name for name, _ in PAGE_HEADERS)
_CORS = b"access-control-"


@final
class Reply:
    """A `send` that minds the headers: no CORS ever, whatever a target said.

    Args:
        send: The server's own.
        of_page: Whether the headers of the page are added.
    """

    __slots__ = ("_of_page", "_send", "started")

    def __init__(self, send: Send, *, of_page: bool) -> None:
        self._send = send
        self._of_page = of_page
        self.started = False

    def __call__(self, message: Message) -> Awaitable[None]:
        """Send a message of ASGI."""
        if not self.started and message["type"] == "http.response.start":
            self.started = True
            headers = [h for h in message.get("headers", ()) if not h[0].startswith(_CORS)]
            if self._of_page:
                headers = [h for h in headers if h[0] not in _PAGE_NAMES]
                headers.extend(PAGE_HEADERS)
            message["headers"] = headers
        return self._send(message)


def refusal_body(refusal: RefusalError, *, path: str) -> bytes:
    """A refusal's JSON, in the shape of the API that the path belongs to."""
    anthropic = path.startswith("/v1/messages")
    return json.dumps(refusal.body(anthropic=anthropic), allow_nan=False).encode()


async def send_refusal(send: Send, refusal: RefusalError, *, path: str) -> None:
    """Send a refusal, in the shape of the API that the path belongs to."""
    body = refusal_body(refusal, path=path)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *((name.encode(), value.encode()) for name, value in refusal.headers.items()),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
