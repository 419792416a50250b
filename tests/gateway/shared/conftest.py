"""A PostgreSQL server, where there can be one."""

from collections.abc import Iterator

import pytest

from tests.gateway.receipts.postgres_server import PostgresServer, absent, postgres_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    if absent():
        pytest.skip(absent())
    pytest.importorskip("psycopg")
    with postgres_server() as running:
        yield running
