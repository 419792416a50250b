"""Malformed requests against a whole gateway: no 500, no silence, and nothing leaks."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks._attack import UPSTREAM_KEY, LeakyTarget, attack
from benchmarks._malformed import BODIES, KEY, Case, cases, good
from packages.gateway.tests.guard.guarded_server import read_reply
from packages.gateway.tests.server_process import GatewayFiles, GatewayProcess, gateway_process

pytestmark = pytest.mark.slow

COUNT = 1_000


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[GatewayProcess, Path, LeakyTarget]]:
    folder = tmp_path_factory.mktemp("malformed")
    with fuzz.leaky_target() as (target, upstream):
        router, pool = fuzz.write_files(folder, upstream)
        files = GatewayFiles(folder, router, pool, folder / "gateway.yaml")
        variables, keys = {"FUZZED_KEY": UPSTREAM_KEY}, str(folder / "keys.yaml")
        with gateway_process(files, "--keys", keys, environment=variables) as gateway:
            yield gateway, folder, target


def test_malformed_requests_get_proper_errors_and_nothing_leaks(
    world: tuple[GatewayProcess, Path, LeakyTarget],
) -> None:
    gateway, folder, target = world
    requests = cases(COUNT, seed=3)
    results = asyncio.run(attack(gateway.port, requests, secrets=fuzz.SECRETS))
    target.is_kind = True
    good_cases = [Case("good", good(path)) for path in BODIES]
    good_results = asyncio.run(
        attack(gateway.port, good_cases, secrets=fuzz.SECRETS, connections=1)
    )
    assert not results.wrong
    assert sum(results.kinds.values()) == COUNT
    assert set(results.statuses) <= {200, 400, 401, 403, 404, 405, 413, 415, 421, 422, 431, 502}
    assert results.statuses[200] > COUNT / 20
    assert target.requests > COUNT / 20
    assert good_results.statuses == {200: len(BODIES) - 1, 404: 1}  # feedback on what never was
    texts = fuzz.collect_texts(gateway.port, folder)
    assert {"receipts.sqlite", "log"} <= set(texts)
    assert '"decision"' in texts["log"] or "pr_" in texts["log"]
    assert "target-0" in texts["/page/api/decisions?limit=200"]
    assert not fuzz.leaks(texts)
    assert "Traceback" not in texts["log"]


def test_what_isnt_http_is_refused_behind_the_answers_that_are_due(
    world: tuple[GatewayProcess, Path, LeakyTarget],
) -> None:
    gateway, _, target = world
    target.is_kind = True
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as sock:
        sock.sendall(good("/v1/chat/completions") * 2 + b"\xff\xfe\r\n\r\n")
        replies = b""
        while piece := sock.recv(65536):
            replies += piece
    assert 1 <= replies.count(b"HTTP/1.1 200") <= 2
    assert replies.count(b"HTTP/1.1 400") == 1
    assert replies.rindex(b"HTTP/1.1 200") < replies.index(b"HTTP/1.1 400")
    assert b'"code": "not_http"' in replies


def test_a_broken_chunk_is_refused_at_once(world: tuple[GatewayProcess, Path, LeakyTarget]) -> None:
    gateway, _, _ = world
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
    head %= KEY.encode()
    head += b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as sock:
        sock.sendall(head + b"zz\r\n")
        reply = read_reply(sock, "POST")
        assert (reply.status, reply.error["code"]) == (400, "not_http")
        assert not sock.recv(1)


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_an_upgrade_that_is_offered_is_passed_over(
    world: tuple[GatewayProcess, Path, LeakyTarget], offer: str
) -> None:
    gateway, _, target = world
    target.is_kind = True
    more = b"content-type: application/json\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    more += b"Upgrade: " + offer.encode()
    request_bytes = good("/v1/chat/completions").replace(b"content-type: application/json", more)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as sock:
        for _ in range(2):
            sock.sendall(request_bytes[:-20])
            sock.sendall(request_bytes[-20:])
            assert read_reply(sock, "POST").status == 200
        sock.sendall(good("/v1/chat/completions"))
        assert read_reply(sock, "POST").status == 200


def test_a_websocket_is_refused_at_once_and_the_connection_goes_on(
    world: tuple[GatewayProcess, Path, LeakyTarget],
) -> None:
    gateway, _, target = world
    target.is_kind = True
    opening = (
        b"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
        b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as sock:
        sock.sendall(opening % KEY.encode())
        reply = read_reply(sock, "GET")
        assert (reply.status, reply.error["code"]) == (426, "no_websockets")
        assert reply.headers["upgrade"] == "HTTP/1.1"
        sock.sendall(good("/v1/chat/completions"))
        assert read_reply(sock, "POST").status == 200


def test_a_targets_headers_that_quote_its_key_stay_behind(
    world: tuple[GatewayProcess, Path, LeakyTarget],
) -> None:
    gateway, _, target = world
    target.is_kind = True
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as sock:
        sock.sendall(good("/v1/chat/completions"))
        reply = read_reply(sock, "POST")
    assert reply.status == 200
    assert not {"x-echo", "x-request-id", "set-cookie"} & set(reply.headers)
