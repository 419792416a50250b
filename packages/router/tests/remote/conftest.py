"""A real S3 server on loopback, and places in it and in fsspec's own store in memory."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from packages.router.tests.fakes.s3_server import BUCKET, s3_server
from prefill_router.remote import RemotePath


@pytest.fixture(scope="session")
def s3() -> Iterator[None]:
    """A server that has a bucket."""
    with s3_server():
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest) -> RemotePath:
    """A place where nothing is yet."""
    if request.param == "s3":
        request.getfixturevalue("s3")
    return RemotePath(f"{request.param}://{BUCKET}/{uuid4().hex}")
