"""A database of each kind."""

from pathlib import Path

import pytest

from packages.gateway.tests.receipts.postgres_server import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/deep/receipts.sqlite"
    running: PostgresServer = request.getfixturevalue("postgres")
    running.clear()
    return running.url
