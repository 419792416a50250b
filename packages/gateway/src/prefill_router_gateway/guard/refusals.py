"""Refusals and unexpected errors as HTTP responses, in the format of each API."""

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from prefill_router_gateway.errors import RefusalError


def refusal_body(refusal: RefusalError, *, path: str) -> bytes:
    """A refusal's JSON, in the format of the API that the path belongs to."""
    anthropic = path.startswith("/v1/messages")
    return json.dumps(refusal.body(anthropic=anthropic), allow_nan=False).encode()


async def send_refusal(send: Send, refusal: RefusalError, *, path: str) -> None:
    """Send a refusal, in the format of the API that the path belongs to."""
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
    """The `exception_handlers` of FastAPI: for Starlette's errors, refusals and unexpected errors.

    The response to an unexpected error reveals nothing of it; the log has the details.
    """
    return {
        HTTPException: _answer_http_error,
        RefusalError: _make_response,
        Exception: _answer_error,
    }


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if "Allow" in headers:
        names = {name.strip() for name in headers["Allow"].split(",")}
        names |= {"HEAD"} if "GET" in names else set()  # every GET also answers HEAD
        headers["Allow"] = ", ".join(sorted(names))
    messages = {  # without the path, which may contain anything
        404: f"no such path{_suggest_path(request)}; /openapi.json lists all paths",
        405: f"the path doesn't accept {request.method}; the header allow lists what it accepts",
    }
    text = messages.get(error.status_code, HTTPStatus(error.status_code).phrase)
    code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code)
    refusal = RefusalError(text, status=error.status_code, code=code, headers=headers)
    return await _make_response(request, refusal)


def _suggest_path(request: Request) -> str:
    """A suggestion of the path that was probably meant, from the server's own paths."""
    paths = request.app.openapi()["paths"]
    parts = [part for part in request.scope["path"].split("/") if part]
    while parts[:1] == ["v1"]:
        parts.pop(0)
    for path in ("/" + "/".join(parts), "/" + "/".join(["v1", *parts])):
        if path in paths and parts:
            return (
                f"; did you mean {path}? OpenAI's clients need a base URL that ends with /v1, "
                "Anthropic's one without it"
            )
    return ""


async def _answer_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    refusal = RefusalError(
        "the gateway failed; its log has the error",
        status=500,
        kind="server_error",
        code="internal",
    )
    return await _make_response(request, refusal)


async def _make_response(request: Request, refusal: RefusalError) -> Response:
    return Response(
        refusal_body(refusal, path=request.url.path),
        status_code=refusal.status,
        headers={"x-content-type-options": "nosniff", **refusal.headers},
        media_type="application/json",
    )
