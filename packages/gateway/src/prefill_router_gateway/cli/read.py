"""`prefill-router read`: what the gateway reads of a recorded request, and why."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, out, print_json
from prefill_router_gateway.cli.texts import shorten_text

if TYPE_CHECKING:
    from prefill_router.agents import RequestReading
    from prefill_router.targets import Endpoint


@app.command()
def read(
    request: Annotated[
        Path,
        typer.Argument(
            metavar="REQUEST.json", help="A JSON object with path, headers and body of a request."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(help="The gateway's settings; marks of agents in them are used too."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Print what the gateway reads in a recorded request: who asks, what, and why.

    A coding agent wraps what a person asks in rules, reminders and the output of tools. The
    encoder reads only what the person asks. If that is short, it reads the earlier ones too.

    Example: prefill-router read request.json
    """
    from prefill_router_gateway.protocol import read_envelope, scored_prompt
    from prefill_router_gateway.settings import GatewaySettings, read_settings

    endpoint, headers, body = _load_request(request)
    settings = GatewaySettings() if config is None else read_settings(config)
    envelope = read_envelope(endpoint, body)
    reading = envelope.read(headers, settings.agents.harnesses)
    scored = scored_prompt(envelope, "ask", reading)
    if as_json:
        print_json({**asdict(reading), "scored": scored})
        return
    _show(reading, scored)


def _load_request(file: Path) -> "tuple[Endpoint, list[tuple[bytes, bytes]], bytes]":
    """The endpoint, the headers and the body of a recorded request.

    Raises:
        DataError: The file isn't a recorded request.
    """
    import json

    from prefill_router.errors import DataError
    from prefill_router_gateway.api import PATHS

    form = '{"path": "/v1/messages", "headers": {...}, "body": {...}}'
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise DataError(f"{file} isn't JSON; it must be like {form}") from None
    headers = value.get("headers", {}) if isinstance(value, Mapping) else None
    if not isinstance(headers, Mapping) or not isinstance(value.get("body"), Mapping):
        raise DataError(f"{file} has no request; it must be like {form}")
    path = str(value.get("path", "")).partition("?")[0]
    endpoint = next((name for name, own in PATHS.items() if own == path), None)
    if endpoint is None:
        raise DataError(
            f"{file} has the path {path!r}; it must be one of {', '.join(PATHS.values())}"
        )
    return (
        endpoint,
        [(str(k).lower().encode(), str(v).encode()) for k, v in headers.items()],
        json.dumps(value["body"]).encode(),
    )


def _show(reading: "RequestReading", scored: Any) -> None:
    lines = {
        "ask": reading.ask,
        "kind": reading.kind,
        "agent": reading.agent,
        "conversation": reading.conversation,
        "parent": reading.parent,
        "turn": reading.turn,
        "type": reading.type,
        "failing steps": str(reading.failing_steps),
    }
    for name, text in lines.items():
        out.say(f"{name}: {shorten_text(text)}")
    for text in reading.earlier:
        out.say(f"earlier: {shorten_text(text)}")
    out.say(f"the encoder reads: {shorten_text(scored if isinstance(scored, str) else None)}")
    for reason in reading.reasons:
        out.say(f"why: {reason}")
