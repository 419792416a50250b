"""A gateway as small as can be around the page: made-up numbers, a key, two endpoints to try."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from packages.gateway.tests.page.source import FakeSource
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.page import page_routes

ANSWER = '<script>document.title = "broken"</script><img src="/x" onerror="alert(1)"> & <b>3</b>'


@final
class PageApp:
    """The application that tests of the page use.

    Attributes:
        source: Its numbers.
        key: The admin's key that `/page/api` and `/v1` ask for; None asks for none.
        prompts: The bodies and headers of the prompts that were tried.
        client_left: Whether a client left an answer that has no end.
        refusals: How many requests were refused for their key.
    """

    def __init__(self, source: FakeSource, *, key: str | None = None) -> None:
        self.source, self.key = source, key
        self.prompts: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.client_left = False
        self.refusals = 0
        self.app = Starlette(
            routes=[
                *page_routes(source),
                Route("/v1/route", self._route, methods=["POST"]),
                Route("/v1/chat/completions", self._answer, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Check the key, then answer."""
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode()
        guarded = scope["path"].startswith(("/page/api/", "/v1/"))
        if guarded and self.key is not None and authorization != f"Bearer {self.key}":
            self.refusals += 1
            text = "this key is no admin's" if authorization else "a key is needed"
            refusal = RefusalError(text, status=403 if authorization else 401)
            await JSONResponse(refusal.body(), refusal.status)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _read(self, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
        body = await request.json()
        self.prompts.append((body, dict(request.headers)))
        headers = {
            "x-prefill-router-target": "heron-70b",
            "x-prefill-router-lam": request.headers.get("x-prefill-router-lam", "0.62"),
            "x-prefill-router-decision": self.source.records[-1].detail["decision"]["id"],
        }
        return body, headers

    async def _route(self, request: Request) -> Response:
        _, headers = await self._read(request)
        targets = {
            "heron-70b": {"correctness": 0.91, "estimated_cost": 0.0006, "score": 0.55},
            "wren-8b": {"correctness": 0.62, "estimated_cost": 0.0001, "score": 0.38},
        }
        decision = {"target": "heron-70b", "order": ["heron-70b", "wren-8b"], "targets": targets}
        return JSONResponse(decision, headers=headers)

    async def _answer(self, request: Request) -> Response:
        body, headers = await self._read(request)
        prompt = body["messages"][0]["content"]
        if prompt == "refuse":
            return JSONResponse(RefusalError("no target fits", status=400).body(), 400)
        return StreamingResponse(
            self._events(prompt), media_type="text/event-stream", headers=headers
        )

    async def _events(self, prompt: str) -> AsyncIterator[bytes]:
        for place in range(0, len(ANSWER), 7):
            yield _event({"choices": [{"delta": {"content": ANSWER[place : place + 7]}}]})
        if prompt == "break":
            yield _event({"error": {"message": "the target broke off"}})
            return
        if prompt == "stay":
            try:
                await asyncio.Event().wait()
            finally:
                self.client_left = True
        yield _event({"choices": [], "usage": {"prompt_tokens": 3}})
        yield b"data: [DONE]\r\n\r\n"


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\r\n\r\n".encode()
