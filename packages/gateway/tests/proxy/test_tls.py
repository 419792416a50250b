"""Targets behind TLS: a target without a trusted certificate gets no request."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from packages.gateway.tests.scripted_target import (
    GOOD,
    HANG,
    STREAM,
    Fake,
    ScriptedClient,
    chunked_reply,
    delta,
    gateway,
)
from prefill_router.errors import ConfigError


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_targets_behind_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    arguments = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=target"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    places = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", *arguments.split(), *names, *places], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    long = delta("x" * 500_000)

    async def ask() -> None:
        scripts = (
            chunked_reply([long, *GOOD]),
            chunked_reply(GOOD),
            chunked_reply([delta("4"), HANG]),
        )
        async with Fake(*scripts, context=context) as fake:
            async with gateway(fake) as app:
                client = await ScriptedClient(STREAM).ask(app)
                assert client.status == 502
                assert {end for _, end in app.ends} == {"connect"}
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            async with gateway(fake.url.replace("127.0.0.1", "localhost")) as app:
                client = await ScriptedClient(STREAM).ask(app)
                assert client.status == 502  # the certificate names another host
                assert {end for _, end in app.ends} == {"connect"}
            assert not fake.requests
            before = fake.connections
            async with gateway(fake) as app:
                assert (await ScriptedClient(STREAM).ask(app)).body == long + b"".join(GOOD)
                assert (await ScriptedClient(STREAM).ask(app)).body == b"".join(GOOD)
                client = ScriptedClient(STREAM)
                task = asyncio.create_task(client.ask(app))
                await client.body_arrived.wait()
                client.leave()
                await task
                await fake.client_left.wait()
                assert app.outcomes[-1].kind == "disconnected"
            assert fake.connections == before + 1

    asyncio.run(ask())


def test_certificates_that_cannot_be_read_are_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none.pem").write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))

    async def start() -> None:
        async with gateway("https://127.0.0.1:9"):
            pass

    with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        asyncio.run(start())
