"""A list of prices on 127.0.0.1, and whatever else a server may answer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS: dict[str, Any] = {
    "data": [
        {
            "id": "openai/gpt-oss-20b",
            "pricing": {"prompt": "0.00000003", "completion": "0.00000014", "request": "0"},
        },
        {
            "id": "google/gemini",
            "pricing": {
                "prompt": "0.00000125",
                "completion": "0.00001",
                "input_cache_read": "0.00000031",
                "input_cache_write": "0.0000015625",
                "internal_reasoning": "0.0000035",
                "overrides": [{"min_prompt_tokens": 200000, "prompt": "0.0000025"}],
            },
        },
        {
            "id": "perplexity/sonar",
            "pricing": {"prompt": 0.000001, "completion": "0.000001", "request": "0.005"},
        },
        {"id": "free/model:free", "pricing": {"prompt": "0", "completion": "0"}},
        {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1", "request": "-1"}},
        {"id": "odd/text", "pricing": {"prompt": "cheap", "completion": "0"}},
        {"id": "odd/nan", "pricing": {"prompt": "NaN", "completion": "0"}},
        {"id": "odd/half", "pricing": {"prompt": "0.1e-6"}},
        {"id": "odd/none"},
        {"id": "odd/million", "pricing": {"prompt": "0.03", "completion": "0.14"}},
        {"id": 7},
        "noise",
    ]
}
ENDPOINTS: dict[str, Any] = {
    "data": {
        "id": "openai/gpt-oss-20b",
        "endpoints": [
            {
                "provider_name": "Fast",
                "tag": "fast",
                "pricing": {"prompt": "0.0000001", "completion": "0.0000005"},
            },
            {
                "provider_name": "Two",
                "tag": "two/fp4",
                "pricing": {"prompt": "0.00000002", "completion": "0.0000001"},
            },
            {
                "provider_name": "Two",
                "tag": "two/bf16",
                "pricing": {"prompt": "0.00000004", "completion": "0.0000002"},
            },
        ],
    }
}


@dataclass
class Page:
    """An answer: status, headers, body; broken off before its end where `missing` says so."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    missing: int = 0
    wait: float = 0.0


@dataclass
class PriceServer:
    """Pages by path, and the requests."""

    pages: dict[str, Page] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    stop: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve_prices() -> Iterator[PriceServer]:
    """A server with OpenRouter's two kinds of pages."""
    server = PriceServer()
    none = {"data": {"id": "google/gemini", "endpoints": []}}
    server.pages = {
        "/v1/models": Page(json.dumps(MODELS).encode()),
        "/v1/models/openai/gpt-oss-20b/endpoints": Page(json.dumps(ENDPOINTS).encode()),
        "/v1/models/google/gemini/endpoints": Page(json.dumps(none).encode()),
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

        def do_GET(self) -> None:
            server.paths.append(self.path)
            server.headers.append(dict(self.headers.items()))
            page = server.pages.get(self.path, Page(b"not here", 404))
            server.stop.wait(page.wait)
            self.send_response(page.status)
            for name, value in page.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(page.body) + page.missing))
            self.end_headers()
            self.wfile.write(page.body)
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_address[1]}/v1/models"
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stop.set()
            listening.shutdown()
            thread.join()
