"""The client as a whole: keys, connections, and the tiny server with its personas and faults."""

import asyncio
import gzip
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.fakes.loopback_endpoint import (
    GOOD,
    USAGE,
    Endpoint,
    Script,
    delta,
    events,
    pool_of,
)
from prefill_router.endpoints import (
    Reply,
    Upstream,
    ask_once,
    bound,
    reason_against_usage,
    reported_cost,
    request_parameters,
)
from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.targets import DIALECTS, Dialect, Pool, Provider, RequestOptions, Target
from prefill_router_minipool.server import Faults, Persona, Rule, ScriptedModel, serve

pytestmark = pytest.mark.slow


def test_keys_must_be_set() -> None:
    pool = pool_of("http://127.0.0.1:1/v1", api_key_env="SOME_KEY")
    with pytest.raises(ConfigError, match="no key for here: set the environment variable SOME_KEY"):
        Upstream(pool, environment={})
    with pytest.raises(ConfigError, match="can't be a key") as error:
        Upstream(pool, environment={"SOME_KEY": "two words"})
    assert "two words" not in str(error.value)
    Upstream(pool, environment={"SOME_KEY": "sk-1\n"})


def test_what_cannot_be_asked_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="'t' has no endpoint"):
        Upstream(Pool((Target(name="t"),)))
    with pytest.raises(ConfigError, match="sets enable_thinking"):
        Upstream(
            pool_of(
                "http://127.0.0.1:1/v1",
                dialect="openai",
                request=RequestOptions(enable_thinking=True),
            )
        )
    upstream = Upstream(pool_of("http://127.0.0.1:1/v1"))
    with pytest.raises(ConfigError, match="isn't open"):
        asyncio.run(upstream.ask("tiny", "x"))
    with pytest.raises(ConfigError, match="unknown targets"):
        asyncio.run(upstream.ask("other", "x"))
    with pytest.raises(ConfigError, match="unknown targets"):
        upstream.parameters("other")


def test_parameters_are_what_is_sent() -> None:
    pool = pool_of("http://127.0.0.1:1/v1", request=RequestOptions(temperature=0.5))
    assert Upstream(pool).parameters("tiny") == request_parameters(pool["tiny"], "vllm")


def test_a_lone_surrogate_is_not_sent() -> None:
    async def run() -> UpstreamError:
        async with Endpoint(GOOD) as endpoint, Upstream(pool_of(endpoint.base_url)) as upstream:
            with pytest.raises(UpstreamError) as error:
                await upstream.ask("tiny", "\ud83d")
            assert not endpoint.requests
            return error.value

    error = asyncio.run(run())
    assert (error.failure, error.billed) == ("refused", "no")


def test_no_more_calls_at_once_than_allowed_and_connections_are_kept() -> None:
    slow = Script([0.02, *GOOD.pieces])

    async def run() -> None:
        async with Endpoint(slow) as endpoint:
            pool = pool_of(endpoint.base_url, concurrency=4)
            async with Upstream(pool) as upstream:
                await asyncio.gather(*(upstream.ask("tiny", f"{i}") for i in range(24)))
            assert len(endpoint.requests) == 24
            assert endpoint.most_at_once == 4
            assert endpoint.connections == 4

    asyncio.run(run())


def test_connections_that_the_server_closed_are_made_anew() -> None:
    closing = Script(GOOD.pieces, headers={"connection": "close"})

    async def run() -> None:
        async with Endpoint(closing) as endpoint, Upstream(pool_of(endpoint.base_url)) as upstream:
            for _ in range(3):
                assert (await upstream.ask("tiny", "x")).text == "4"
            assert endpoint.connections == 3

    asyncio.run(run())


def test_a_connection_closed_while_idle_is_made_anew() -> None:
    async def run() -> None:
        async with Endpoint(GOOD, Script([*GOOD.pieces, "break"]), GOOD) as endpoint:
            async with Upstream(pool_of(endpoint.base_url)) as upstream:
                for _ in range(4):
                    assert (await upstream.ask("tiny", "x")).text == "4"
                    await asyncio.sleep(0.02)
            assert endpoint.connections == 2

    asyncio.run(run())


@pytest.mark.parametrize(("seconds", "billed"), [(0.0, "no"), (1.2, "perhaps")])
def test_a_connection_closed_while_a_request_is_under_way(seconds: float, billed: str) -> None:
    """A used connection that ends at once was idle too long: the server has done nothing."""

    async def run() -> None:
        closed = asyncio.Event()

        async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await reader.read(10_000)
            content = b"".join(piece for piece in GOOD.pieces if isinstance(piece, bytes))
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
            )
            writer.write(head % len(content) + content)
            if not closed.is_set():
                await reader.readuntil(b"\r\n\r\n")  # the next request meets a closing connection
                closed.set()
                await asyncio.sleep(seconds)
            writer.close()

        async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            pool = pool_of(f"http://127.0.0.1:{port}/v1")
            async with Upstream(pool) as upstream:
                assert (await upstream.ask("tiny", "x")).text == "4"
                with pytest.raises(UpstreamError) as error:
                    await upstream.ask("tiny", "x")
                assert (await upstream.ask("tiny", "x")).text == "4"  # on a new connection
        assert (error.value.failure, error.value.billed) == ("broken_off", billed)
        assert error.value.retriable

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", "ftp://me:secret@x"),
        ("SSL_CERT_FILE", "/no/such"),
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
    ],
)
def test_an_unfit_environment_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}") as error:
        ask_once(pool_of("http://127.0.0.1:1/v1"), "tiny", "x")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    ["http://", "ftp://x/v1", "http://[::1", "http://x:port/v1", "http://x:99999/v1"],
)
def test_an_address_that_is_none_is_told_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        pool_of(address)
    with pytest.raises(ConfigError, match="api_key_env") as error:
        pool_of("http://me:secret@127.0.0.1:1/v1")
    assert "secret" not in str(error.value)


def test_calls_can_be_cancelled() -> None:
    async def run() -> None:
        async with Endpoint(Script(["hang"]), GOOD) as endpoint:
            pool = pool_of(endpoint.base_url, concurrency=1)
            async with Upstream(pool) as upstream:
                call = asyncio.create_task(upstream.ask("tiny", "x"))
                while not endpoint.requests:
                    await asyncio.sleep(0.01)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert (await upstream.ask("tiny", "x")).text == "4"

    asyncio.run(run())


def test_two_providers_have_keys_of_their_own() -> None:
    async def run() -> None:
        async with Endpoint(GOOD) as first, Endpoint(GOOD) as second:
            targets = (
                Target(name="a", base_url=first.base_url, api_key_env="KEY_A"),
                Target(name="b", base_url=second.base_url, api_key_env="KEY_B", model="vendor/b"),
            )
            keys = {"KEY_A": "sk-a", "KEY_B": "sk-b"}
            async with Upstream(Pool(targets), environment=keys) as upstream:
                await asyncio.gather(upstream.ask("a", "x"), upstream.ask("b", "x"))
            assert first.requests[0].headers["authorization"] == "Bearer sk-a"
            assert second.requests[0].headers["authorization"] == "Bearer sk-b"
            assert second.requests[0].body["model"] == "vendor/b"

    asyncio.run(run())


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> str:
        async with Endpoint(GOOD) as proxy:
            monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1"))
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            async with Upstream(pool_of("http://far.example/v1")) as upstream:
                assert (await upstream.ask("tiny", "x")).text == "4"
            return proxy.requests[0].path

    assert asyncio.run(run()) == "http://far.example/v1/chat/completions"


def test_request_ids_are_kept() -> None:
    script = Script(GOOD.pieces, headers={"x-request-id": "req-7"})

    async def run() -> Reply:
        async with Endpoint(script) as endpoint, Upstream(pool_of(endpoint.base_url)) as upstream:
            return await upstream.ask("tiny", "x")

    reply = asyncio.run(run())
    assert reply.response == {"id": "c-1", "created": 1, "request_id": "req-7"}
    assert reply.usage.reported == USAGE


def test_compressed_answers_are_read_all_the_same() -> None:
    content = b"".join(p for p in events(delta("4", finish="stop")) if isinstance(p, bytes))
    script = Script([gzip.compress(content)], headers={"content-encoding": "gzip"})

    async def run() -> Reply:
        async with Endpoint(script) as endpoint, Upstream(pool_of(endpoint.base_url)) as upstream:
            return await upstream.ask("tiny", "x")

    assert asyncio.run(run()).text == "4"


def test_importing_loads_no_client() -> None:
    heavy = ("openai", "httpx2", "torch")
    program = f"import prefill_router.endpoints, sys; print({{*{heavy}}} & {{*sys.modules}})"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "set()"


MODEL = ScriptedModel("tiny", {"What is 2 + 2?": "It is four."})


def served_pool(base_url: str, **options: Any) -> Pool:
    request = options.pop("request", RequestOptions(max_tokens=64))
    provider = Provider(name="here", base_url=base_url, **{"concurrency": 8, **options})
    target = Target(
        name="tiny", provider="here", request=request, input_price=1.0, output_price=2.0
    )
    return Pool((target,), providers=(provider,))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_of_the_tiny_server(dialect: Dialect) -> None:
    persona = Persona(style=dialect, reasoning=4, cached=2, cost=0.5)
    with serve([MODEL], faults=Faults(personas={"*": persona})) as server:
        pool = served_pool(server.base_url, dialect=dialect)
        reply = ask_once(pool, "tiny", "What is 2 + 2?")
        record = server.log[0]
    assert reply.text == "It is four."
    assert bool(reply.reasoning) == persona.shows_reasoning
    assert reply.finish_reason == "stop"
    assert reply.served_by == "tiny"
    assert reply.usage.input_tokens == record.prompt_tokens
    assert reply.usage.output_tokens == record.completion_tokens
    assert reason_against_usage(reply.usage, bound(pool["tiny"], "What is 2 + 2?")) == ""
    assert reported_cost(reply.usage) == (0.5 if dialect == "openrouter" else None)


FAULTS: list[tuple[Rule, str | None]] = [
    (Rule(kind="delay", seconds=0.01), None),
    (Rule(kind="slow", seconds=0.005), None),
    (Rule(kind="wrong_model"), None),
    (Rule(kind="empty"), None),
    (Rule(kind="finish", finish="length"), None),
    (Rule(kind="usage", usage="omit"), None),
    (Rule(kind="usage", usage="text"), None),
    (Rule(kind="usage", usage="null"), None),
    (Rule(kind="stall", seconds=3.0), "first_token_timeout"),
    (Rule(kind="status", status=500), "server_error"),
    (Rule(kind="status", status=503), "overloaded"),
    (Rule(kind="rate_limit", retry_after=0.05, form="ms"), "rate_limited"),
    (Rule(kind="unauthorized"), "unauthorised"),
    (Rule(kind="context_length"), "context_too_long"),
    (Rule(kind="unsupported_field", field="max_tokens"), "unsupported"),
    (Rule(kind="break"), "broken_off"),
    (Rule(kind="truncate"), "broken_off"),
    (Rule(kind="hang"), "answer_timeout"),
    (Rule(kind="error_event"), "server_error"),
    (Rule(kind="bad_json"), "malformed"),
    (Rule(kind="finish", finish="content_filter"), "content_filter"),
]


@pytest.mark.parametrize(("rule", "kind"), FAULTS, ids=lambda v: getattr(v, "kind", v))
def test_every_fault_of_the_tiny_server(rule: Rule, kind: str | None) -> None:
    with serve([MODEL], faults=Faults(rules=[rule])) as server:
        seconds = 0.3 if rule.kind in ("stall", "hang") else 60.0
        pool = served_pool(server.base_url, dialect="vllm", first_token_seconds=seconds)
        if kind is None:
            reply = ask_once(pool, "tiny", "What is 2 + 2?")
            assert reply.text == ("" if rule.kind == "empty" else "It is four.")
            return
        with pytest.raises(UpstreamError) as error:
            ask_once(pool, "tiny", "What is 2 + 2?")
    assert error.value.failure == kind
    assert error.value.retry_after == (0.05 if kind == "rate_limited" else None)


@pytest.mark.parametrize("lie", ["zero", "huge", "negative", "text", "null", "omit"])
def test_lies_about_usage_are_seen(lie: Any) -> None:
    rule = Rule(kind="usage", usage=lie)
    with serve([MODEL], faults=Faults(rules=[rule])) as server:
        pool = served_pool(server.base_url, dialect="vllm")
        reply = ask_once(pool, "tiny", "What is 2 + 2?")
    doubt = reason_against_usage(reply.usage, bound(pool["tiny"], "What is 2 + 2?"))
    assert bool(doubt) == (lie != "zero")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_connections_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    places = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words.split(), *names, *places], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def run() -> None:
        async with Endpoint(GOOD, context=context) as endpoint:
            pool = pool_of(endpoint.base_url)
            async with Upstream(pool) as upstream:
                with pytest.raises(UpstreamError) as error:
                    await upstream.ask("tiny", "x")
                assert (error.value.failure, error.value.billed) == ("connect", "no")
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            async with Upstream(pool) as upstream:
                for _ in range(3):
                    assert (await upstream.ask("tiny", "x")).text == "4"
            assert len(endpoint.requests) == 3
            assert endpoint.connections == 1

    asyncio.run(run())


def test_a_key_in_the_place_of_its_variable_is_not_shown() -> None:
    pool = pool_of("http://127.0.0.1:1/v1", api_key_env="abc123secret")
    with pytest.raises(ConfigError, match="no key for here") as error:
        Upstream(pool, environment={})
    assert "secret" not in str(error.value)
