"""What goes back to clients where a request isn't answered: refusals and errors, as JSON."""

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from prefill_router.gateway.errors import RefusalError


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


Handler = Callable[[Request, Any], Awaitable[Response]]


def error_handlers() -> dict[int | type[Exception], Handler]:
    """For `FastAPI(exception_handlers=...)`: errors of Starlette's own, and what isn't foreseen.

    The reply to what isn't foreseen tells nothing but that; the log has the rest.
    """
    return {HTTPException: _of_starlette, RefusalError: _reply, Exception: _unforeseen}


async def _of_starlette(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if "Allow" in headers:
        names = {name.strip() for name in headers["Allow"].split(",")}
        names |= {"HEAD"} if "GET" in names else set()  # the head alone may be asked for too
        headers["Allow"] = ", ".join(sorted(names))
    told = {  # without the path, which may hold anything
        404: f"no such path{_nearest(request)}; /openapi.json lists those that there are",
        405: f"the path doesn't take {request.method}; it takes what the header allow says",
    }
    text = told.get(error.status_code, HTTPStatus(error.status_code).phrase)
    code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code)
    refusal = RefusalError(text, status=error.status_code, code=code, headers=headers)
    return await _reply(request, refusal)


def _nearest(request: Request) -> str:
    """The path that was probably meant: of this server's own words, nothing that was sent."""
    known = request.app.openapi()["paths"]
    parts = [part for part in request.scope["path"].split("/") if part]
    while parts[:1] == ["v1"]:
        parts.pop(0)
    for path in ("/" + "/".join(parts), "/" + "/".join(["v1", *parts])):
        if path in known and parts:
            return (
                f"; did you mean {path}? OpenAI's clients want a base URL that ends with /v1, "
                "Anthropic's one that ends before it"
            )
    return ""


async def _unforeseen(request: Request, error: Exception) -> Response:  # noqa: ARG001
    refusal = RefusalError(
        "the gateway failed; its log says how", status=500, kind="server_error", code="internal"
    )
    return await _reply(request, refusal)


async def _reply(request: Request, refusal: RefusalError) -> Response:
    return Response(
        refusal_body(refusal, path=request.url.path),
        status_code=refusal.status,
        headers={"x-content-type-options": "nosniff", **refusal.headers},
        media_type="application/json",
    )
