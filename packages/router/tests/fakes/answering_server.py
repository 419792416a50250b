"""A server of chat completions whose answers a function makes, in the tests' own process."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AnswerMaker = Callable[[str, str], str | None]
"""Makes the answer of a model to a prompt; None for an error 500."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answer: AnswerMaker
    requests: list[dict[str, Any]]


@contextmanager
def serve_answers(answer: AnswerMaker) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve; yields the base URL and the bodies of the requests so far."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.answer, server.requests = answer, []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", server.requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        prompt = "\n".join(turn["content"] for turn in body["messages"])
        text = self.server.answer(body["model"], prompt)
        status, content = (500, b"{}") if text is None else (200, _events(text, prompt))
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _events(text: str, prompt: str) -> bytes:
    usage = {"prompt_tokens": len(prompt) // 4 + 1, "completion_tokens": len(text) // 4 + 1}
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunks = ({"choices": [choice]}, {"choices": [end]}, {"choices": [], "usage": usage})
    lines = [f"data: {json.dumps({'id': 'c', 'model': 'm', **chunk})}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()
