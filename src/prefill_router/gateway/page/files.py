"""The page's own files, read once and served from memory."""

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HOME = "index.html"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""What browsers are told about the page: it loads nothing from elsewhere and isn't framed."""


@final
class PageFile:
    """One file of the page.

    Args:
        name: Its file name.
        body: Its bytes.
    """

    def __init__(self, name: str, body: bytes) -> None:
        self.name, self.body = name, body
        self.etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        self._headers = {
            **HEADERS,
            # Asked about each time: after an upgrade, no old module meets a new one.
            "cache-control": "no-cache",
            "etag": self.etag,
        }
        self._type = _TYPES[name.rpartition(".")[2]]

    def reply(self, if_none_match: str | None) -> Response:
        """The file, or 304 for a client that has it."""
        known = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
        if self.etag in known or "*" in known:
            return Response(status_code=304, headers=self._headers)
        return Response(self.body, media_type=self._type, headers=self._headers)


def read_page_files() -> tuple[PageFile, ...]:
    """All files of the page."""
    folder = files("prefill_router.gateway.page").joinpath("static")
    known = (item for item in folder.iterdir() if item.name.rpartition(".")[2] in _TYPES)
    return tuple(
        PageFile(item.name, item.read_bytes()) for item in sorted(known, key=lambda i: i.name)
    )


def file_routes() -> list[Route]:
    """The page at `/`, and what it loads at `/page/NAME`."""
    return [
        Route("/" if file.name == _HOME else f"/page/{file.name}", _serve(file))
        for file in read_page_files()
    ]


def _serve(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        return file.reply(request.headers.get("if-none-match"))

    return serve
