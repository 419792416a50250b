"""Fixtures of tests that ask a whole gateway, by themselves or in a browser.

Each module that asks one says by `made` what it stands before.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import openai

    from packages.gateway.tests.receipts.postgres_server import PostgresServer
    from packages.gateway.tests.sdk_clients import Sent
    from packages.gateway.tests.world import Served, World


@pytest.fixture(scope="module")
def gateway(made: "World") -> "Iterator[Served]":
    """A gateway in a thread, before the module's targets."""
    from packages.gateway.tests.world import served

    with served(made) as gateway:
        yield gateway


@pytest.fixture
def sent() -> "Sent":
    """What a client's SDK itself has sent."""
    from packages.gateway.tests.sdk_clients import Sent

    return Sent()


@pytest.fixture
def client(gateway: "Served", sent: "Sent") -> "Iterator[openai.OpenAI]":
    """The openai SDK, before the gateway."""
    from packages.gateway.tests.sdk_clients import openai_client

    with openai_client(gateway.url, sent) as client:
        yield client


@pytest.fixture(scope="session")
def postgres_running() -> "Iterator[PostgresServer]":
    """A PostgreSQL server, where there can be one."""
    from packages.gateway.tests.receipts.postgres_server import absent, postgres_server

    if absent():
        pytest.skip(absent())
    pytest.importorskip("psycopg")
    with postgres_server() as running:
        yield running


@pytest.fixture(scope="module")
def postgres(postgres_running: "PostgresServer") -> "PostgresServer":
    """The PostgreSQL server, without tables."""
    postgres_running.clear()
    return postgres_running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium."""
    from packages.gateway.tests.browser import chromium

    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
