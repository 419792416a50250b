"""A failure before the first byte is retried, then at another target; a later one never is."""

import asyncio
import gzip
import json
import random
from typing import Any

import pytest

from packages.gateway.tests.scripted_target import (
    ANSWER,
    CHAT,
    DONE,
    ERROR,
    GOOD,
    GOOD_REPLY,
    HANG,
    PAUSE,
    QUICK,
    STREAM,
    Fake,
    Gateway,
    Script,
    ScriptedClient,
    ask_targets,
    body_reply,
    chunked_reply,
    delta,
    event,
    gateway,
    json_reply,
    pool_of,
)
from prefill_router.endpoints import Breakers
from prefill_router.errors import ConfigError
from prefill_router.targets import Pool, Provider, Target
from prefill_router_minipool.server import Faults, Rule, ScriptedModel, serve

pytestmark = pytest.mark.slow

HALF_BODY = body_reply(json.dumps(ANSWER).encode())[0][:-20]


FAILURES: dict[str, tuple[Script, str]] = {
    "500": (json_reply(ERROR, status=500), "server_error"),
    "503": (json_reply(ERROR, status=503), "overloaded"),
    "429": (json_reply(ERROR, status=429, headers="retry-after-ms: 1\r\n"), "rate_limited"),
    "408": (json_reply(ERROR, status=408), "server_error"),
    "409": (json_reply(ERROR, status=409), "server_error"),
    "closed": ([], "broken_off"),
    "half a head": ([b"HTTP/1.1 200 OK\r\ncontent-"], "broken_off"),
    "half a body": ([HALF_BODY or b""], "broken_off"),
    "no JSON": (body_reply(b'{"choices": ['), "malformed"),
    "a page": (body_reply(b"<html>", kind="text/html"), "malformed"),
    "no HTTP": ([b"SSH-2.0-x\r\n\r\n"], "malformed"),
    "moved": (
        body_reply(b"", status=302, headers="location: http://127.0.0.1:9/\r\n"),
        "malformed",
    ),
    "an error as an answer": (json_reply(ERROR), "server_error"),
    "an empty stream": (chunked_reply([]), "broken_off"),
    "a stream that breaks": (chunked_reply([b": hello\n\n"], end=False), "broken_off"),
    "only the end of a stream": (chunked_reply([DONE]), "malformed"),
    "an error first": (chunked_reply([event(ERROR), DONE]), "server_error"),
    "nonsense first": (chunked_reply([b"data: {nonsense\n\n", *GOOD]), "malformed"),
    "endless headers": ([b"HTTP/1.1 200 OK\r\n" + b"x: %b\r\n" % (b"y" * 999) * 300], "malformed"),
}


@pytest.mark.parametrize("body", [CHAT, STREAM])
@pytest.mark.parametrize("what", FAILURES)
def test_what_fails_before_its_first_byte_is_tried_again(what: str, body: bytes) -> None:
    script, end = FAILURES[what]
    good = chunked_reply(GOOD) if body is STREAM else GOOD_REPLY
    client, app, counts = ask_targets([script, good], body=body)
    assert client.status == 200
    assert client.body == (b"".join(GOOD) if body is STREAM else json.dumps(ANSWER).encode())
    assert app.ends == [("a", end), ("a", "answered")]
    assert counts == [2]
    assert app.breakers.failures("a") == 0


@pytest.mark.parametrize("what", FAILURES)
def test_then_the_next_target_is_asked(what: str) -> None:
    script, end = FAILURES[what]
    client, app, counts = ask_targets([script], [GOOD_REPLY])
    assert client.body == json.dumps(ANSWER).encode()
    assert client.headers["x-own"] == "b 3"
    assert app.ends == [("a", end), ("a", end), ("b", "answered")]
    assert app.outcome.target == "b"
    assert counts == [2, 1]


FAILOVERS: dict[str, tuple[Script, str]] = {
    "401": (json_reply(ERROR, status=401), "unauthorised"),
    "402": (json_reply(ERROR, status=402), "unauthorised"),
    "403": (json_reply(ERROR, status=403), "unauthorised"),
    "404": (json_reply(ERROR, status=404), "unknown_model"),
    "405": (json_reply(ERROR, status=405), "unknown_call"),
    "501": (json_reply(ERROR, status=501), "unknown_call"),
    "too long": (
        json_reply({"error": {"code": "context_length_exceeded"}}, status=400),
        "context_too_long",
    ),
    "too long, in a list": (
        json_reply([{"error": {"message": "exceeds the maximum number of tokens"}}], status=400),
        "context_too_long",
    ),
    "unknown parameter": (
        json_reply({"error": {"code": "unsupported_parameter"}}, status=400),
        "unsupported",
    ),
    "no tools": (
        json_reply({"error": {"message": "a does not support tools"}}, status=422),
        "unsupported",
    ),
    "no credit": (
        json_reply({"error": {"code": "insufficient_quota"}}, status=429),
        "unauthorised",
    ),
    "come back later": (
        json_reply(ERROR, status=429, headers="retry-after: 60\r\n"),
        "rate_limited",
    ),
}


@pytest.mark.parametrize("what", FAILOVERS)
def test_what_a_retry_cannot_fix_goes_to_the_next_target_at_once(what: str) -> None:
    script, end = FAILOVERS[what]
    client, app, _ = ask_targets([script], [GOOD_REPLY])
    assert client.status == 200
    assert app.ends == [("a", end), ("b", "answered")]
    is_harmless = end in ("context_too_long", "unsupported", "unknown_call")
    assert app.breakers.failures("a") == (0 if is_harmless else 1)


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_an_error_that_is_the_clients_own_is_passed_on_byte_for_byte(status: int) -> None:
    body = b'{ "error" : {"message": "no such field", "type": "invalid_request_error"} }'
    kind = "application/problem+json"
    if status == 413:  # the prompt is too long; perhaps not for other targets
        body = b'{"error": {}}'
    script = body_reply(body, status=status, kind=kind)
    client, app, counts = ask_targets([script], [script])
    assert (client.status, client.body) == (status, body)
    assert client.headers["content-type"] == kind
    assert app.outcome.kind == "refused"
    assert counts == ([1, 1] if status == 413 else [1, 0])
    assert app.breakers.failures("a") == 0


def test_a_prompt_too_long_for_all_is_told_so_and_not_where_one_failed_otherwise() -> None:
    too_long, _ = FAILOVERS["too long"]
    client, app, _ = ask_targets([too_long], [too_long])
    assert client.status == 400
    assert app.outcome.kind == "refused"
    assert app.outcome.target == "b"
    client, app, _ = ask_targets([too_long], [json_reply(ERROR, status=500)])
    assert client.status == 502
    assert app.outcome.kind == "failed"


@pytest.mark.parametrize("what", ["too long", "unknown parameter", "no tools"])
def test_what_no_target_can_do_is_said_in_the_last_ones_words(what: str) -> None:
    script, _ = FAILOVERS[what]
    client, app, counts = ask_targets([FAILOVERS["unknown parameter"][0]], [script])
    assert script[0] is not None
    assert script[0].endswith(client.body)
    assert (app.outcome.kind, app.outcome.target) == ("refused", "b")
    assert counts == [1, 1]


def test_the_limit_of_one_target_alone_is_passed_on_as_it_is() -> None:
    headers = "retry-after: 518400\r\nanthropic-ratelimit-unified-status: rejected\r\n"
    limit = json_reply(ERROR, status=429, headers=headers)
    client, app, counts = ask_targets([limit])
    assert (client.status, client.body) == (429, json.dumps(ERROR).encode())
    assert client.headers["retry-after"] == "518400"  # six days, the limit of a subscription
    assert client.headers["anthropic-ratelimit-unified-status"] == "rejected"
    assert (app.outcome.kind, app.outcome.target, counts) == ("failed", "a", [1])
    assert app.breakers.failures("a") == 1


def test_a_limit_that_quotes_the_key_is_not_passed_on() -> None:
    body = json.dumps({"error": {"message": "sk-hush-1 is over its limit"}}).encode()
    packed = body_reply(gzip.compress(body), status=400, headers="content-encoding: x-gzip\r\n")
    unknown = body_reply(body[::-1], status=400, headers="content-encoding: br\r\n")
    escaped = body.replace(b"sk-", b"sk\\u002d")
    listed = body_reply(b"[%b]" % escaped, status=400)
    plain = [body_reply(body, status=429), body_reply(escaped, status=400)]
    for script in (*plain, listed, packed, unknown):
        client, _, _ = ask_targets(
            [script],
            pool=lambda *u: pool_of(*u, key="LAB_KEY"),
            environment={"LAB_KEY": "sk-hush-1"},
        )
        assert client.status in (429, 502, 400)
        assert b"hush" not in client.body
        assert b"hsuh" not in client.body


def test_at_the_end_of_all_an_error_lists_what_was_tried_and_nothing_else() -> None:
    client, app, _ = ask_targets([json_reply(ERROR, status=500)], [json_reply(ERROR, status=401)])
    assert client.status == 502
    error = json.loads(client.body)["error"]
    assert error["code"] == "no_target_answered"
    assert "a had an internal error, 2 times; b refuses the key" in error["message"]
    assert "secret" not in client.body.decode()
    assert client.headers["x-own"] == "None 3"
    assert client.headers["x-should-retry"] == "false"  # SDKs would retry twice
    assert (app.outcome.kind, app.outcome.target, app.outcome.usage) == ("failed", None, None)


def test_a_redirect_is_named_and_its_address_is_for_the_receipt() -> None:
    client, app, _ = ask_targets([FAILURES["moved"][0]])
    assert b"a redirects, and the key isn't sent on, 2 times" in client.body
    assert b"127.0.0.1" not in client.body
    assert "to 127.0.0.1" in (app.outcome.attempts[0].failure or "")


def test_where_all_are_rate_limited_the_client_is_told_when_to_come_back() -> None:
    limits = [json_reply(ERROR, status=429, headers=f"retry-after: {n}\r\n") for n in (40, 30)]
    client, app, counts = ask_targets([limits[0]], [limits[1]])
    assert client.status == 429
    assert client.headers["retry-after"] == "30"
    assert counts == [1, 1]
    assert (app.breakers.failures("a"), app.breakers.failures("b")) == (1, 1)


def test_where_all_are_overloaded_the_shortest_wait_that_helps_is_told() -> None:
    busy = [json_reply(ERROR, status=503, headers=f"retry-after: {n}\r\n") for n in (9, 4)]
    client, _, _ = ask_targets([busy[0]], [busy[1]])
    assert (client.status, client.headers["retry-after"]) == (503, "4")
    assert "x-should-retry" not in client.headers
    assert "try again in 4 s" in client.body.decode()
    client, _, _ = ask_targets([busy[0]], [json_reply(ERROR, status=500)])
    assert (client.status, client.headers["x-should-retry"]) == (502, "false")


def test_errors_of_messages_have_their_own_shape() -> None:
    client, _, _ = ask_targets([json_reply(ERROR, status=500)], endpoint="messages")
    assert json.loads(client.body)["type"] == "error"


@pytest.mark.parametrize("limit", ["first_token_seconds", "answer_seconds"])
def test_where_all_take_too_long_the_client_is_told_504(limit: str) -> None:
    failures = QUICK.model_copy(update={limit: 0.05})
    client, app, counts = ask_targets([[HANG]], [chunked_reply([b": wait\n\n", HANG])],
                                body=STREAM, failures=failures)  # fmt: skip
    assert client.status == 504
    assert counts == [1, 1]
    assert {end for _, end in app.ends} == {limit.replace("seconds", "timeout")}


def test_any_byte_shows_that_a_target_lives() -> None:
    failures = QUICK.model_copy(update={"first_token_seconds": 2.0})
    script = chunked_reply([*[b": thinking\n\n"] * 5, *GOOD])
    for place in range(6, 1, -1):
        script.insert(place, PAUSE)
    client, app, _ = ask_targets([script], body=STREAM, failures=failures)
    assert client.body == b": thinking\n\n" * 5 + b"".join(GOOD)
    assert app.ends == [("a", "answered")]


def test_a_silence_after_the_first_byte_ends_the_stream_and_is_not_retried() -> None:
    failures = QUICK.model_copy(update={"silence_seconds": 0.05})
    client, app, counts = ask_targets(
        [chunked_reply([delta("4"), HANG])], [chunked_reply(GOOD)], body=STREAM, failures=failures
    )
    assert client.body.startswith(delta("4"))
    assert b"stream_cut" in client.body
    assert counts == [1, 0]
    assert app.ends == [("a", "silence")]


def test_a_plain_answer_may_take_longer_than_the_first_token_of_a_stream() -> None:
    failures = QUICK.model_copy(update={"first_token_seconds": 0.001, "answer_seconds": 60.0})
    slow = [b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n"] * 50, GOOD_REPLY[0][17:]]  # type: ignore[index]
    client, _, _ = ask_targets([slow], failures=failures)
    assert client.status == 200


def test_nobody_listens() -> None:
    async def ask() -> tuple[ScriptedClient, Gateway]:
        async with Fake(GOOD_REPLY) as closed:
            url = closed.url
        async with Fake(GOOD_REPLY) as fake, gateway(url, fake) as app:
            return await ScriptedClient().ask(app), app

    client, app = asyncio.run(ask())
    assert client.status == 200
    assert app.ends == [("a", "connect"), ("a", "connect"), ("b", "answered")]


def test_targets_of_a_server_that_cannot_be_reached_wait_for_those_of_others() -> None:
    async def ask() -> tuple[ScriptedClient, Gateway]:
        async with Fake(GOOD_REPLY) as closed:
            url = closed.url
        failures = QUICK.model_copy(update={"retries": 0, "targets": 2})
        async with Fake(GOOD_REPLY) as fake, gateway(url, url, url, fake, failures=failures) as app:
            return await ScriptedClient().ask(app), app

    client, app = asyncio.run(ask())
    assert client.status == 200
    assert app.ends == [("a", "connect"), ("d", "answered")]


def test_where_no_server_can_be_reached_all_targets_are_asked() -> None:
    async def ask() -> tuple[ScriptedClient, Gateway]:
        async with Fake(GOOD_REPLY) as closed:
            url = closed.url
        async with gateway(url, url) as app:
            return await ScriptedClient().ask(app), app

    client, app = asyncio.run(ask())
    assert app.ends == [(name, "connect") for name in "aabb"]
    words = b"a can't be reached, 2 times; b can't be reached, 2 times; if it goes on"
    assert words in client.body


def test_in_a_tool_loop_nobody_else_is_asked() -> None:
    client, _, counts = ask_targets([json_reply(ERROR, status=500)], [GOOD_REPLY], stay=True)
    assert client.status == 502
    assert counts == [2, 0]


def test_no_more_targets_are_asked_than_were_set() -> None:
    bad = [json_reply(ERROR, status=401)]
    failures = QUICK.model_copy(update={"targets": 2})
    client, _, counts = ask_targets(bad, bad, [GOOD_REPLY], failures=failures)
    assert client.status == 502
    assert counts == [1, 1, 0]


def test_an_idle_connection_that_was_closed_costs_no_attempt() -> None:
    async def ask() -> tuple[Gateway, Fake]:
        reply = body_reply(json.dumps(ANSWER).encode())
        async with Fake(reply) as fake, gateway(fake) as app:
            await ScriptedClient().ask(app)
            await ScriptedClient().ask(app)
            assert fake.connections == 1
            fake.close_idle()  # the next request is sent before the gateway notices
            client = await ScriptedClient().ask(app)
            assert client.status == 200
            return app, fake

    app, fake = asyncio.run(ask())
    assert [len(outcome.attempts) for outcome in app.outcomes] == [1, 1, 1]
    assert fake.connections == 2


def test_what_comes_unasked_closes_the_connection() -> None:
    async def ask() -> Fake:
        extra = [(GOOD_REPLY[0] or b"") + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
        async with Fake(extra, GOOD_REPLY) as fake, gateway(fake) as app:
            first = await ScriptedClient().ask(app)
            second = await ScriptedClient().ask(app)
            assert first.body == second.body == json.dumps(ANSWER).encode()
            return fake

    assert asyncio.run(ask()).connections == 2


def test_early_hints_are_skipped() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    client, app, _ = ask_targets([[hints + (GOOD_REPLY[0] or b"")]])
    assert client.status == 200
    assert "link" not in client.headers
    assert app.ends == [("a", "answered")]


def test_a_refusal_that_quotes_the_key_is_not_passed_on() -> None:
    def build_pool(*urls: str) -> Pool:
        return pool_of(*urls, key="LAB_KEY")

    body = {"error": {"message": "odd header Bearer sk-hush-1"}}
    client, app, _ = ask_targets(
        [json_reply(body, status=400)], pool=build_pool, environment={"LAB_KEY": "sk-hush-1"}
    )
    assert client.status == 502
    assert "hush" not in client.body.decode()
    assert app.ends == [("a", "unauthorised")]


def test_each_call_that_fails_says_why_and_what_to_do_without_secrets() -> None:
    def build_pool(*urls: str) -> Pool:
        return pool_of("http://127.0.0.1:9/v1?token=hush-2", *urls, key="LAB_KEY")

    page = json_reply({"error": {"message": "hush-1 is wrong", "code": "hush-1"}}, status=401)
    _, app, _ = ask_targets(
        [page], [GOOD_REPLY], pool=build_pool, environment={"LAB_KEY": "hush-1"}
    )
    ends = {(attempt.target, attempt.end): attempt.failure for attempt in app.outcome.attempts}
    nowhere = ends["a", "connect"] or ""
    assert "http://127.0.0.1:9/v1 can't be reached, since nothing listens there" in nowhere
    assert "check its base_url" in nowhere
    refusal = ends["b", "unauthorised"] or ""
    assert "check api_key_env" in refusal
    assert "HTTP 401" in refusal
    assert ends["c", "answered"] is None
    assert "hush" not in f"{nowhere}{refusal}"


def test_keys_go_where_each_dialect_wants_them() -> None:
    async def ask(dialect: Any, endpoint: str, headers: list[Any]) -> tuple[str, dict[str, str]]:
        def build_pool(*urls: str) -> Pool:
            provider = Provider(name="p", base_url=urls[0], dialect=dialect, api_key_env="LAB_KEY")
            return Pool((Target(name="a", provider="p"),), None, (provider,))

        async with (
            Fake(json_reply({"type": "message", "id": "m"})) as fake,
            gateway(
                fake,
                pool=build_pool,
                environment={"LAB_KEY": "sk-hush-1"},
                endpoint=endpoint,
                headers=headers,
            ) as app,
        ):
            await ScriptedClient().ask(app)
            path, headers_sent, _ = fake.requests[0]
            return path, headers_sent

    path, headers = asyncio.run(ask("anthropic", "messages", [(b"x-api-key", b"theirs")]))
    assert path == "/v1/messages"
    assert headers["x-api-key"] == "sk-hush-1"
    assert headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in headers
    path, headers = asyncio.run(
        ask("anthropic", "messages", [(b"anthropic-version", b"2024-01-01")])
    )
    assert headers["anthropic-version"] == "2024-01-01"
    path, headers = asyncio.run(ask("vllm", "messages", []))
    assert path == "/messages"
    assert headers["authorization"] == "Bearer sk-hush-1"


def test_a_key_that_is_not_set_is_told_at_the_start() -> None:
    async def start() -> None:
        async with gateway("http://127.0.0.1:9", pool=lambda *u: pool_of(*u, key="LAB_KEY")):
            pass

    with pytest.raises(ConfigError, match="LAB_KEY"):
        asyncio.run(start())


# The pool of models that break on purpose.

PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "status": ({"kind": "status", "status": 503}, "overloaded"),
    "rate_limit": ({"kind": "rate_limit", "retry_after": 0.001, "form": "ms"}, "rate_limited"),
    "unauthorized": ({"kind": "unauthorized"}, "unauthorised"),
    "context": ({"kind": "context_length"}, "context_too_long"),
    "break": ({"kind": "break", "after": 0}, "broken_off"),
    "truncate": ({"kind": "truncate", "after": 0}, ""),
    "error_event": ({"kind": "error_event", "after": 0}, "server_error"),
    "bad_json": ({"kind": "bad_json", "after": 0}, ""),
    "hang": ({"kind": "hang", "after": 0}, "first_token_timeout"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", PLANS)
def test_models_that_break_on_purpose(what: str, stream: bool) -> None:
    rule, end = PLANS[what]
    if what == "hang" and not stream:
        end = "answer_timeout"
    models = [ScriptedModel("a", lambda _: "forty-two"), ScriptedModel("b", lambda _: "42")]
    limits = {"first_token_seconds": 0.3, "silence_seconds": 0.3, "answer_seconds": 0.3}
    if what != "hang":
        limits = {}
    failures = QUICK.model_copy(update=limits)

    async def ask(url: str) -> tuple[ScriptedClient, Gateway]:
        def body(target: str) -> bytes:
            asks = {"model": target, "messages": [{"role": "user", "content": "?"}]}
            return json.dumps({**asks, "stream": stream}).encode()

        async with gateway(url, url, failures=failures, bodies=body, stream=stream) as app:
            return await ScriptedClient().ask(app), app

    with serve(models, faults=Faults(rules=[Rule(model="a", **rule)], seed=0)) as server:
        client, app = asyncio.run(ask(server.url))
    assert client.is_over
    if what == "bad_json" and stream:  # it is passed on unchanged
        assert app.outcome.kind == "answered"
    elif app.outcome.kind == "cut":  # the event with the role was already passed on
        assert stream
        assert b'"error"' in client.body
    else:
        assert app.outcome.target == "b"
        assert b"42" in client.body
        assert app.outcome.attempts[0].end == end or not end


def test_nothing_but_answers_and_errors_comes_of_random_bytes() -> None:
    chance = random.Random(0)
    good = b"".join(p for p in chunked_reply(GOOD) if p)

    def spoil_stream() -> bytes:
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randrange(9)]
            else:
                data.insert(at, chance.randrange(256))
        return bytes(data)

    async def ask() -> Gateway:
        scripts: list[Script] = [[spoil_stream()] for _ in range(300)]
        failures = QUICK.model_copy(update={"retries": 0})
        async with (
            Fake(*scripts, chunked_reply(GOOD), closes=True) as fake,
            gateway(fake, failures=failures, breakers=Breakers(failures=1000, seconds=1)) as app,
        ):
            for _ in scripts:
                client = await ScriptedClient(STREAM).ask(app)
                assert client.is_over
            last = await ScriptedClient(STREAM).ask(app)
            assert last.body == b"".join(GOOD)
            return app

    app = asyncio.run(ask())
    kinds = {outcome.kind for outcome in app.outcomes}
    assert kinds <= {"answered", "failed", "cut", "refused"}
    assert {"answered", "failed", "cut"} <= kinds


@pytest.mark.parametrize("status", [429, 503])
def test_only_those_that_may_answer_later_say_when_to_try_again(status: int) -> None:
    never = json_reply({"error": {"code": "unsupported_parameter"}}, status=400)
    busy = json_reply(ERROR, status=status, headers="retry-after: 7\r\n")
    for scripts in (([never], [busy]), ([busy], [never])):
        client, app, _ = ask_targets(*scripts)
        assert {end for _, end in app.ends} >= {"unsupported"}
        assert (client.status, client.headers["retry-after"]) == (503, "7")
        able = next(target for target, end in app.ends if end != "unsupported")
        assert f"only {able} may answer it; try again in 7 s" in client.body.decode()
