"""Runs coding agents through a gateway, with their default settings, and prints what was read.

    npm install -g @anthropic-ai/claude-code @openai/codex opencode-ai
    python examples/agents/run_agents.py [claude] [codex] [opencode]
        [--targets chats|own] [--silence 5]

No model and no key is needed: a scripted target asks each agent for one shell command, and then
says that it is done. Each agent runs twice: in front of targets that speak chats alone, into which
the gateway translates Claude Code's messages and Codex's Responses, and in front of targets that
speak the agent's own protocol. With `--silence 5` the target thinks for five seconds before each
answer, and the gateway sends keep-alives each second.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prefill_router_gateway.receipts import read_receipts

ASK = "Why does test_checkout fail only on Mondays? Find the cause and fix it."
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SHELLS = ("Bash", "bash", "shell", "shell_command", "exec_command")
ARGUMENTS = {"command": "ls", "cmd": "ls", "description": "list the files"}
SERVED = {"chats": "[chat]", "own": "[chat, messages, responses]"}
"""What the targets speak: chats alone, or the agents' own protocols as well."""
POOL = """\
targets:
  - {{name: small, base_url: "{url}", serves: {served}, accepts: [tools, images, json_schema]}}
  - {{name: large, base_url: "{url}", serves: {served}, accepts: [tools, images]}}
"""
CODEX = """\
model = "auto"
model_provider = "router"
[model_providers.router]
name = "router"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "ROUTER_KEY"
"""


class Target(BaseHTTPRequestHandler):
    """A model that calls a shell once and then is done."""

    protocol_version = "HTTP/1.1"
    numbers = itertools.count(1)
    silence = 0.0

    def do_POST(self) -> None:
        """Answer a request by a stream of events."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        protocol = self.path.partition("?")[0].rpartition("/")[2]
        is_done = any(mark in json.dumps(body) for mark in RESULTS)
        tools = [tool.get("function", tool).get("name") for tool in body.get("tools", [])]
        shell = None if is_done else next((name for name in SHELLS if name in tools), None)
        number = next(self.numbers)
        time.sleep(self.silence)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in WRITERS.get(protocol, _chat)(number, shell):
            self.wfile.write(event.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def _chat(number: int, shell: str | None) -> Iterator[str]:
    function = {"name": shell, "arguments": json.dumps(ARGUMENTS)}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    message: dict[str, Any] = {"content": "Done."} if shell is None else {"tool_calls": [call]}
    reason = "stop" if shell is None else "tool_calls"
    for delta, finish in (({"role": "assistant", **message}, None), ({}, reason)):
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        yield f"data: {json.dumps({'id': f'c_{number}', 'choices': choices})}\n\n"
    yield "data: [DONE]\n\n"


def _message(number: int, shell: str | None) -> Iterator[str]:
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": shell, "input": {}}
    block = {"type": "text", "text": ""} if shell is None else call
    delta: dict[str, Any] = {"type": "text_delta", "text": "Done."}
    if shell is not None:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(ARGUMENTS)}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted"}
    usage = {"input_tokens": 100, "output_tokens": 9}
    end = {"stop_reason": "end_turn" if shell is None else "tool_use", "stop_sequence": None}
    for kind, fields in (
        ("message_start", {"message": {**head, "content": [], "usage": usage}}),
        ("content_block_start", {"index": 0, "content_block": block}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": end, "usage": usage}),
        ("message_stop", {}),
    ):
        yield f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _response(number: int, shell: str | None) -> Iterator[str]:
    call = {"call_id": f"call_{number}", "name": shell, "arguments": json.dumps(ARGUMENTS)}
    text = {"type": "output_text", "text": "Done.", "annotations": []}
    item: dict[str, Any] = {"type": "function_call", "id": f"fc_{number}", **call}
    if shell is None:
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [text]}
    head = {"id": f"resp_{number}", "object": "response", "model": "scripted"}
    usage = {"input_tokens": 100, "output_tokens": 9, "total_tokens": 109}
    for place, (kind, fields) in enumerate(
        (
            ("response.created", {"response": {**head, "status": "in_progress", "output": []}}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.output_item.done", {"output_index": 0, "item": item}),
            (
                "response.completed",
                {"response": {**head, "status": "completed", "output": [item], "usage": usage}},
            ),
        )
    ):
        event = {"type": kind, "sequence_number": place, **fields}
        yield f"event: {kind}\ndata: {json.dumps(event)}\n\n"


WRITERS = {"messages": _message, "responses": _response}
RESULTS = ('"role": "tool"', '"type": "tool_result"', '"type": "function_call_output"')
"""What a body has once the command was run."""


@contextmanager
def scripted_target() -> Iterator[str]:
    """The address of the target."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


@contextmanager
def serving_gateway(folder: Path, target: str, served: str) -> Iterator[str]:
    """The address of a gateway without a router, which forecasts nothing and reads everything."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "pool.yaml").write_text(POOL.format(url=target, served=served))
    settings: dict[str, Any] = {"listen": {"port": port}, "receipts": {"prompts": True}}
    settings["streams"] = {"keep_alive_seconds": 1}
    (folder / "gateway.yaml").write_text(json.dumps(settings))
    program = [str(Path(sys.executable).with_name("prefill-router")), "serve"]
    program += ["--pool", "pool.yaml"]
    program += ["--config", "gateway.yaml", "--default", "small"]
    with (folder / "gateway.log").open("w") as log:
        process = subprocess.Popen(program, cwd=folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/health", process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the gateway has ended; see its log")


def run_agent(name: str, folder: Path, url: str) -> str:
    """Ask an agent, in an empty project and a home of its own; returns what it printed last."""
    home, work = folder / f"home-{name}", folder / f"work-{name}"
    (home / ".codex").mkdir(parents=True)
    work.mkdir()
    (work / "app.py").write_text("x = 1\n")
    (work / "CLAUDE.md").write_text("Keep functions short.\n")
    (work / "AGENTS.md").write_text("Keep functions short.\n")
    (home / ".codex" / "config.toml").write_text(CODEX.format(url=url))
    options = {"baseURL": f"{url}/v1", "apiKey": "x"}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "router",
        "options": options,
        "models": {"auto": {"name": "auto"}},
    }
    (work / "opencode.json").write_text(json.dumps({"provider": {"router": provider}}))
    anthropic = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_MODEL": "auto", "ANTHROPIC_AUTH_TOKEN": "x"}
    command, own = {
        "claude": (["claude", "-p", ASK, "--allowedTools", "Bash"], anthropic),
        "codex": (["codex", "exec", "--skip-git-repo-check", ASK], {"ROUTER_KEY": "x"}),
        "opencode": (["opencode", "run", "-m", "router/auto", ASK], {}),
    }[name]
    process = subprocess.run(
        command,
        cwd=work,
        env={**os.environ, **own, "HOME": str(home), "PWD": str(work)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    text = COLOURS.sub(
        "", process.stdout if process.returncode == 0 else process.stdout + process.stderr
    )
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")


def main() -> None:
    """Run the agents that are installed, and print each request's receipt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", default=["claude", "codex", "opencode"])
    parser.add_argument("--targets", choices=SERVED, help="by default first one, then the other")
    parser.add_argument("--silence", type=float, default=0, help="seconds before each answer")
    options = parser.parse_args()
    Target.silence = options.silence
    for targets in [options.targets] if options.targets else SERVED:
        print(f"in front of targets that speak {'chats' if targets == 'chats' else 'the same'}:")
        run_agents(options.agents, SERVED[targets])


def run_agents(agents: list[str], served: str) -> None:
    """Run the agents in front of targets that speak these protocols, and print what was read."""
    with (
        tempfile.TemporaryDirectory() as place,
        scripted_target() as target,
        serving_gateway(Path(place), target, served) as url,
    ):
        for name in agents:
            if shutil.which(name) is None:
                print(f"{name}: isn't installed")
                continue
            print(f"{name}: it said {run_agent(name, Path(place), url)!r}")
        for receipt in read_receipts(f"sqlite:///{place}/receipts.sqlite"):
            agent = receipt.details.get("agent", {})
            print(
                f"{agent.get('agent')} {agent.get('kind')} ({receipt.endpoint}): "
                f"{receipt.outcome.kind} by {receipt.outcome.target}, "
                f"conversation {str(receipt.choice.session)[:6]}, read {receipt.prompt!r}"
            )


if __name__ == "__main__":
    main()
