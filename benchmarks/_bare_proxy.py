"""The bare reverse proxy: FastAPI and httpx2, as anybody would write it in ten lines."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask


def app(target: str) -> FastAPI:
    """A proxy in front of one server."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx2.AsyncClient(base_url=target, limits=limits, timeout=None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    proxy = FastAPI(lifespan=lifespan)

    @proxy.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        body = await request.body()
        upstream_request = client.build_request(
            "POST",
            "/v1/chat/completions",
            content=body,
            headers={"content-type": "application/json", "accept-encoding": "identity"},
        )
        reply = await client.send(upstream_request, stream=True)
        return StreamingResponse(
            reply.aiter_raw(),
            status_code=reply.status_code,
            media_type=reply.headers.get("content-type"),
            background=BackgroundTask(reply.aclose),
        )

    return proxy


if __name__ == "__main__":
    uvicorn.run(
        app(f"http://127.0.0.1:{sys.argv[1]}"),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        log_level="warning",
        access_log=False,
        backlog=4096,
    )
