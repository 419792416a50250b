"""Fixtures of tests that ask a whole gateway, by themselves or in a browser.

A module that asks a gateway has a fixture `world`: the targets and files of that gateway.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import openai

    from packages.gateway.tests.receipts.postgres_server import PostgresServer
    from packages.gateway.tests.sdk_clients import RequestRecorder
    from packages.gateway.tests.world import LocalGateway, World


@pytest.fixture(scope="module")
def gateway(world: "World") -> "Iterator[LocalGateway]":
    """A gateway in a thread, before the module's targets."""
    from packages.gateway.tests.world import serve_world

    with serve_world(world) as gateway:
        yield gateway


@pytest.fixture
def recorder() -> "RequestRecorder":
    """The requests that a client's SDK has sent."""
    from packages.gateway.tests.sdk_clients import RequestRecorder

    return RequestRecorder()


@pytest.fixture
def client(gateway: "LocalGateway", recorder: "RequestRecorder") -> "Iterator[openai.OpenAI]":
    """The openai SDK, before the gateway."""
    from packages.gateway.tests.sdk_clients import openai_client

    with openai_client(gateway.url, recorder) as client:
        yield client


@pytest.fixture(scope="session")
def postgres_running() -> "Iterator[PostgresServer]":
    """A PostgreSQL server, where there can be one."""
    from packages.gateway.tests.receipts.postgres_server import missing_reason, postgres_server

    if missing_reason():
        pytest.skip(missing_reason())
    pytest.importorskip("psycopg")
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def postgres(postgres_running: "PostgresServer") -> "PostgresServer":
    """The PostgreSQL server, without tables."""
    postgres_running.clear()
    return postgres_running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium."""
    from packages.gateway.tests.browser import chromium

    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
