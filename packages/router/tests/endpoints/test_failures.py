"""Each failure of an endpoint has its own name, and its message holds no secret."""

import asyncio
import json
import logging
import socket
import time
import traceback
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import pytest

from packages.router.tests.fakes.loopback_endpoint import (
    BREAK,
    GOOD,
    HANG,
    USAGE,
    Endpoint,
    Piece,
    Script,
    answer,
    ask_endpoint,
    delta,
    events,
    failure,
    plain,
    pool_of,
)
from prefill_router.endpoints import FOR_ANY_PROMPT, FOR_ONE_PROMPT, RETRIABLE, Reply, ask_once
from prefill_router.endpoints.error_body import kind_of, read_error
from prefill_router.errors import FAILURE_KINDS, FailureKind, UpstreamError

pytestmark = pytest.mark.slow

SECRET, KEY = "the-launch-code-is-8341", "sk-very-secret"
HALF = delta("The answer")


def refusal(status: int, error: object, headers: Mapping[str, str] | None = None) -> Script:
    return plain({"error": error}, status=status, headers=headers)


def detail(message: str = "", kind: str = "", code: str | int = "") -> dict[str, Any]:
    return {"message": message, "type": kind, "code": code, "param": None}


GEMINI = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
ANTHROPIC = "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"
MOST = "which is the maximum allowed number of output tokens for claude-9"
XAI = "This model's maximum prompt length is 131072 but the request contains 200000 tokens."
INVALID, QUOTA = "invalid_request_error", "insufficient_quota"
STATUSES: list[tuple[int, object, FailureKind]] = [
    (401, detail("Incorrect API key provided", INVALID, "invalid_api_key"), "unauthorised"),
    (403, detail("no"), "unauthorised"),
    (402, detail("Insufficient Balance", "unknown_error", INVALID), "unauthorised"),
    (429, detail("slow down", "requests", "rate_limit_exceeded"), "rate_limited"),
    (429, detail("You exceeded your quota", QUOTA, QUOTA), "unauthorised"),
    (429, "too many tokens per minute, your prompt is too long for it", "rate_limited"),
    (400, detail("Your credit balance is too low for the API", INVALID), "unauthorised"),
    (404, detail("The model does not exist", "NotFoundError", 404), "unknown_model"),
    (400, detail("gpt-9 is not a valid model ID", "", 400), "refused"),
    (400, detail("The model `gpt-9` does not exist", "", "model_not_found"), "unknown_model"),
    (400, detail("x", INVALID, "context_length_exceeded"), "context_too_long"),
    (400, detail("This model's maximum context length is 4096", "", 400), "context_too_long"),
    (
        400,
        detail("prompt is too long: 210000 tokens > 200000 maximum", INVALID),
        "context_too_long",
    ),
    (413, detail("request_too_large"), "context_too_long"),
    (
        400,
        detail("max_tokens is too large: 128000. We support at most 16384"),
        "unsupported",
    ),
    (
        400,
        detail(
            "'max_tokens' or 'max_completion_tokens' is too large: 128000. This model's maximum "
            "context length is 32768 tokens"
        ),
        "unsupported",
    ),
    (400, detail(GEMINI, "INVALID_ARGUMENT", 400), "context_too_long"),
    (400, detail(ANTHROPIC, INVALID), "context_too_long"),
    (400, detail("Your request exceeded model token limit: 131072", INVALID), "context_too_long"),
    (400, detail(XAI), "context_too_long"),
    (400, detail("Prompt", "", "1261"), "context_too_long"),
    (422, "Input validation error: `inputs` must have less than 3072 tokens", "context_too_long"),
    (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", "context_too_long"),
    (404, detail("No endpoints found that support tool use", "", 404), "unsupported"),
    (400, detail("gpt-9 does not support image input"), "unsupported"),
    (404, detail("The requested model is not supported"), "unknown_model"),
    (403, detail("This model is not supported on your plan"), "unauthorised"),
    (401, detail("This API key type is not supported"), "unauthorised"),
    (400, detail(f"max_tokens: 200000 > 64000, {MOST}", INVALID), "unsupported"),
    (
        400,
        detail("Invalid max_tokens value, the valid range of max_tokens is [1, 8]"),
        "unsupported",
    ),
    (400, detail("max_tokens must be at least 1, got -1"), "refused"),
    (400, detail("max_tokens must be greater than thinking.budget_tokens", INVALID), "refused"),
    (400, detail("'max_tokens' is not supported with this model.", INVALID), "unsupported"),
    (400, detail("Unrecognized request argument supplied: top_k", INVALID), "unsupported"),
    (400, detail("messages.1.content.0: Invalid `signature` in `thinking` block"), "unsupported"),
    (400, detail("The encrypted content gAAA... could not be verified."), "unsupported"),
    (422, {"detail": [{"msg": "Extra inputs are not permitted"}]}, "unsupported"),
    (400, detail("x", "data_inspection_failed", "data_inspection_failed"), "content_filter"),
    (400, detail("x", "", "content_filter"), "content_filter"),
    (403, detail("Your input was flagged", "", 403), "content_filter"),
    (422, {"detail": "temperature must be at most 2"}, "refused"),
    (400, detail("Unsupported parameter: top_k", INVALID, "unknown_parameter"), "unsupported"),
    (408, detail(), "server_error"),
    (500, detail("x", "server_error"), "server_error"),
    (502, "<html>bad gateway</html>", "server_error"),
    (503, detail("x"), "overloaded"),
    (529, detail("Overloaded", "overloaded_error"), "overloaded"),
    (307, "", "refused"),
]


@pytest.mark.parametrize(("status", "error", "kind"), STATUSES)
def test_an_error_status_is_told_apart(status: int, error: object, kind: FailureKind) -> None:
    raised = failure(refusal(status, error))
    assert (raised.failure, raised.status, raised.billed) == (kind, status, "no")
    assert raised.retriable == (kind in RETRIABLE)
    assert raised.partial is None
    assert f"HTTP {status}" in str(raised)


def test_an_error_within_a_list_is_read() -> None:
    error = {"error": detail(GEMINI, "INVALID_ARGUMENT", 400)}
    assert failure(plain([error], status=400)).failure == "context_too_long"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b"null",
        b'"text"',
        b'[{"error": {"code": 400, "status": "INVALID_ARGUMENT"}}]',
        b'{"error": 7}',
        b'{"error": {"message": ["x"], "code": {"a": 1}}}',
        b"\xff\xfe",
        b"x" * 2**20,
    ],
)
def test_any_body_of_an_error_will_do(body: bytes) -> None:
    error = failure(Script([body] if body else [], 400, {}, "application/json"))
    assert (error.failure, error.status) == ("refused", 400)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "3", "retry-after-ms": "250"}, 0.25),
        ({"x-ratelimit-reset-requests": "1m2s", "x-ratelimit-remaining-requests": "0"}, 62.0),
        ({}, None),
    ],
)
def test_when_to_ask_again_is_told(headers: dict[str, str], seconds: float | None) -> None:
    assert failure(refusal(429, detail(), headers)).retry_after == seconds


def test_a_date_to_ask_again_is_understood() -> None:
    later = formatdate(time.time() + 100, usegmt=True)
    error = failure(refusal(503, detail(), {"Retry-After": later}))
    assert error.retry_after is not None
    assert 90 < error.retry_after <= 100


def test_a_date_to_ask_again_goes_by_the_endpoints_own_clock() -> None:
    hour_ago = time.time() - 3600
    headers = {
        "date": formatdate(hour_ago, usegmt=True),
        "retry-after": formatdate(hour_ago + 30, usegmt=True),
    }
    assert failure(refusal(429, "slow down", headers)).retry_after == pytest.approx(30, abs=1)


def test_headers_of_the_provider_behind_count() -> None:
    error = {**detail("x", "", 429), "metadata": {"headers": {"Retry-After": "4"}}}
    assert failure(refusal(429, error)).retry_after == 4.0


def test_no_one_waits_for_an_account_without_credit() -> None:
    script = refusal(429, detail("", "", "insufficient_quota"), {"Retry-After": "3"})
    assert failure(script).retry_after is None


SOON: dict[str, float] = {"first_token_seconds": 0.3, "answer_seconds": 30.0}


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([*events(HALF, done=False), BREAK], "broken_off"),
        ([b'data: {"choi', BREAK], "broken_off"),
        (events(HALF, done=False), "broken_off"),
        ([], "broken_off"),
        ([b": only a comment\n\n"], "broken_off"),
        ([*events(HALF, done=False), HANG], "answer_timeout"),
        ([HANG], "first_token_timeout"),
        ([*events(delta("", role="assistant"), done=False), HANG], "first_token_timeout"),
        ([b": still working\n\n", 0.2, b": still working\n\n", 0.2, HANG], "first_token_timeout"),
        ([b"data: {nonsense}\n\n"], "malformed"),
        ([b"data: nonsense\n\n"], "malformed"),
        ([b"data: []\n\n"], "malformed"),
        ([b'data: {"choices": 7}\n\n'], "malformed"),
        ([b'data: {"choices": [7]}\n\n'], "malformed"),
        ([b'data: {"choices": [{"delta": 7}]}\n\n'], "malformed"),
        ([b'data: {"choices": [{"delta": {"content": 7}}]}\n\n'], "malformed"),
        ([b'data: {"x": NaN}\n\n'], "malformed"),
        ([b'data: {"x": 1e999}\n\n'], "malformed"),
        ([b'data: {"x": "\xff"}\n\n'], "malformed"),
        ([b'data: {"x": ' + b"9" * 5000 + b"}\n\n"], "malformed"),
        ([b'data: {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"], "malformed"),
        (events(), "empty"),
        (events({"choices": [], "usage": USAGE}), "empty"),
        (events(delta("", role="assistant")), "empty"),
        (events(HALF, {"error": detail("x", "server_error")}), "server_error"),
        (events({"error": detail("x", "rate_limit_error", 429)}), "rate_limited"),
        (events({"error": detail("x", "", 502)}), "server_error"),
        (events({"type": "error", "error": {"type": "overloaded_error"}}), "overloaded"),
        (events({"object": "error", "message": "context length", "code": 400}), "context_too_long"),
        (events({"error": "something broke"}), "server_error"),
        (events(HALF, delta(finish="content_filter")), "content_filter"),
        (events(HALF, delta(finish="error")), "server_error"),
        (events(HALF, delta(finish="insufficient_system_resource")), "overloaded"),
        (events(HALF, delta(finish="abort")), "broken_off"),
    ],
)
def test_a_stream_that_goes_wrong_is_told_apart(pieces: list[Piece], kind: FailureKind) -> None:
    error = failure(Script(pieces), **SOON)
    assert (error.failure, error.status, error.billed) == (kind, None, "perhaps")
    assert error.retriable == (kind in RETRIABLE)
    came = any(isinstance(piece, bytes) and b"The answer" in piece for piece in pieces)
    assert (error.partial.text if error.partial else None) == ("The answer" if came else None)


def test_a_page_is_no_answer() -> None:
    assert (
        failure(Script([b"<html>log in</html>"], content_type="text/html")).failure == "malformed"
    )


def test_an_error_in_one_piece_with_status_200() -> None:
    assert failure(plain({"error": detail("x", "", 429)})).failure == "rate_limited"


def test_an_answer_that_takes_too_long_as_a_whole() -> None:
    drip: list[Piece] = [p for _ in range(100) for p in (*events(HALF, done=False), 0.05)]
    error = failure(Script(drip), first_token_seconds=5.0, answer_seconds=0.4)
    assert error.failure == "answer_timeout"
    assert error.partial is not None
    assert 0.2 < error.partial.seconds < 0.6
    assert failure(Script([HANG]), answer_seconds=0.1).failure == "answer_timeout"


def test_slow_but_steady_answers_arrive() -> None:
    drip: list[Piece] = [p for _ in range(8) for p in (*events(HALF, done=False), 0.1)]
    script = Script([*drip, *events(delta(finish="stop"))])
    assert answer(script, first_token_seconds=0.4, answer_seconds=20.0).text == "The answer" * 8


@pytest.mark.parametrize("end", [[BREAK], [HANG], []])
def test_what_follows_the_finish_reason_may_be_lacking(end: list[Piece]) -> None:
    pieces = [*events(HALF, delta(finish="stop"), done=False), *end]
    reply = answer(Script(pieces), **SOON)
    assert (reply.text, reply.finish_reason) == ("The answer", "stop")
    assert reply.usage.output_tokens is None


def test_a_closing_mark_without_a_finish_reason_is_an_end() -> None:
    assert answer(Script([*events(HALF), HANG])).text == "The answer"


@pytest.mark.parametrize(
    ("finish", "text"), [("length", "The ans"), ("stop", ""), ("tool_calls", "")]
)
def test_cut_and_empty_answers_are_answers(finish: str, text: str) -> None:
    reply = answer(Script(events(delta(text), delta(finish=finish))))
    assert (reply.text, reply.finish_reason) == (text, finish)


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


def test_nobody_there() -> None:
    pool = pool_of(f"http://127.0.0.1:{closed_port()}/v1")
    with pytest.raises(UpstreamError, match="can't be reached") as error:
        ask_once(pool, "tiny", "x")
    assert (error.value.failure, error.value.billed) == ("connect", "no")
    assert error.value.retriable


def connect_error(url: str) -> str:
    with pytest.raises(UpstreamError) as error:
        ask_once(pool_of(url), "tiny", "x", attempts=1)
    assert error.value.failure == "connect"
    return str(error.value)


def test_why_an_endpoint_cannot_be_reached_is_said_with_its_address() -> None:
    port = closed_port()
    message = connect_error(f"http://127.0.0.1:{port}/v1?key={KEY}")
    assert f"at http://127.0.0.1:{port}/v1 can't be reached, since nothing listens there" in message
    assert KEY not in message
    assert "its host is unknown" in connect_error("http://no-such-host.invalid/v1")


def test_an_endpoint_that_does_not_speak_tls_is_named_so() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def run() -> Reply | UpstreamError:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            endpoint = Endpoint(GOOD)
            endpoint.base_url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            return await ask_endpoint(endpoint)

    assert "doesn't speak TLS" in str(asyncio.run(run()))


def test_what_came_in_place_of_an_answer_is_said() -> None:
    page = Script([b"<html>log in</html>"], content_type="text/html")
    assert "sent a web page; check that its base_url" in str(failure(page))
    page = Script([b"<html>none</html>"], 404, content_type="text/html")
    assert "(HTTP 404, a web page)" in str(failure(page))
    moved = Script([b""], 302, {"Location": f"https://elsewhere.example/{SECRET}"})
    message = str(failure(moved))
    assert "redirects, and the key isn't sent on" in message
    assert message.endswith("(HTTP 302, to elsewhere.example)")


def test_nobody_answers_the_call() -> None:
    with socket.socket() as full:  # a queue that is full takes no connection
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        pool = pool_of(f"http://127.0.0.1:{address[1]}/v1", connect_seconds=0.2)
        with pytest.raises(UpstreamError, match="took no connection") as error:
            ask_once(pool, "tiny", "x")
        for client in waiting:
            client.close()
    assert (error.value.failure, error.value.billed) == ("connect_timeout", "no")


def test_closed_before_the_headers() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def run() -> UpstreamError:
        server = await asyncio.start_server(slam, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(GOOD)
            endpoint.base_url = f"http://127.0.0.1:{port}/v1"
            error = await ask_endpoint(endpoint)
            assert isinstance(error, UpstreamError)
            return error

    error = asyncio.run(run())
    assert (error.failure, error.billed) == ("broken_off", "perhaps")


def list_echoes() -> list[Script]:
    text = f"I got {SECRET} with {KEY}"
    body = {"message": text, "type": SECRET, "code": KEY, "param": text}
    return [
        refusal(400, body),
        refusal(401, body),
        refusal(500, text),
        plain({"error": body}),
        Script(events({"error": body})),
        Script(events(delta(text, finish="content_filter"))),
        Script([f"data: {text}\n\n".encode()]),
        Script([f"data: {json.dumps(text)}\n\n".encode()]),
        Script([text.encode()], 302, {"Location": f"http://127.0.0.1/{KEY}"}),
        Script([HANG]),
    ]


@pytest.mark.parametrize("script", list_echoes())
def test_neither_prompt_nor_key_is_told(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        error = failure(
            script,
            SECRET,
            environment={"A_KEY": KEY},
            api_key_env="A_KEY",
            first_token_seconds=0.1,
        )
    # httpcore logs the headers of replies at its lowest level; they hold no key
    messages = [r.getMessage() for r in caplog.records if r.name != "httpcore2.http11"]
    texts = "".join([str(error), *traceback.format_exception(error), *messages])
    assert SECRET not in texts
    assert KEY not in texts
    assert error.__cause__ is None


def test_names_of_errors_are_told() -> None:
    error = failure(refusal(400, detail("x", INVALID, "unknown_parameter")))
    assert "type invalid_request_error, code unknown_parameter" in str(error)


@pytest.mark.parametrize("code", [f"key.{KEY}.revoked", KEY, f"{KEY}-x"])
def test_names_that_hold_the_key_are_not_told(code: str) -> None:
    script = refusal(401, detail("no", "authentication_error", code))
    error = failure(script, api_key_env="A_KEY", environment={"A_KEY": KEY})
    assert KEY not in str(error)
    assert "authentication_error" in str(error)


@pytest.mark.parametrize("status", [504, 524])
def test_a_gateway_that_gave_up_waiting_may_be_billed_for(status: int) -> None:
    error = failure(refusal(status, "timeout"))
    assert (error.failure, error.billed, error.retriable) == ("server_error", "perhaps", True)


def test_redirects_are_not_followed() -> None:
    async def run() -> None:
        async with (
            Endpoint(GOOD) as other,
            Endpoint(Script([], 307, {"Location": other.base_url + "/chat/completions"})) as first,
        ):
            error = await ask_endpoint(first, environment={"A_KEY": KEY}, api_key_env="A_KEY")
            assert isinstance(error, UpstreamError)
            assert error.failure == "refused"
            assert not other.requests

    asyncio.run(run())


def test_every_failure_is_seen_here() -> None:
    kinds = {kind for *_, kind in STATUSES} | {"connect", "connect_timeout"}
    streams = test_a_stream_that_goes_wrong_is_told_apart.pytestmark[0].args[1]
    assert kinds | {kind for _, kind in streams} == set(FAILURE_KINDS)


def test_an_error_without_a_status_is_the_servers() -> None:
    assert kind_of(read_error({"error": {"code": "weird"}}), None) == "server_error"


def test_every_failure_may_pass_or_is_the_targets_or_the_prompts() -> None:
    kinds = [*RETRIABLE, *FOR_ANY_PROMPT, *FOR_ONE_PROMPT]
    assert sorted(kinds) == sorted(FAILURE_KINDS)
