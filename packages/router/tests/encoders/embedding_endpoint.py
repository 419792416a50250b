"""An endpoint of embeddings on loopback, which can be made to fail."""

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np

WIDTH = 6
Change = Callable[[dict[str, Any]], Any]
Failing = tuple[int, dict[str, str]]
"""A status and headers, in place of an answer."""


def vector_of(text: str) -> list[float]:
    seed = list(hashlib.sha256(text.encode()).digest())
    return [float(x) for x in np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)]


class EmbeddingEndpoint:
    """Answers with vectors that follow from the texts, in a shuffled order with their indices.

    Attributes:
        failing: The next requests are answered with these, one after another.
        change: Makes something else of an answer.
        refused: A text that has a request refused.
        bodies: The bodies of all requests.
        headers: Their headers.
    """

    def __init__(self) -> None:
        self.failing: list[Failing] = []
        self.change: Change | None = None
        self.refused: str | None = None
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []

    def __enter__(self) -> "EmbeddingEndpoint":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.bodies.append(body)
                outer.paths.append(self.path)
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                status, headers, answer = outer.answer(body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self.name = f"endpoint:tiny-embed@{self.base_url}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        texts = body["input"]
        if self.failing:
            status, headers = self.failing.pop(0)
            return status, headers, {"error": {"message": f"no: {texts[0]}", "type": "told"}}
        if self.refused is not None and any(self.refused in text for text in texts):
            words = f"input is too long: {self.refused}"
            return 400, {}, {"error": {"message": words, "code": "context_length_exceeded"}}
        data = [
            {"object": "embedding", "index": i, "embedding": vector_of(text)}
            for i, text in enumerate(texts)
        ]
        count = sum(len(text.split()) for text in texts)
        answer = {
            "object": "list",
            "data": data[::-1],
            "model": "tiny-embed-2",
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
        return 200, {}, self.change(answer) if self.change else answer
