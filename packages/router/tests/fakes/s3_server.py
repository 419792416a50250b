"""A real S3 server on loopback, with a bucket."""

from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest
from moto.server import ThreadedMotoServer

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[None]:
    """Serve, and set the variables of the environment that lead there."""
    with pytest.MonkeyPatch.context() as patch:
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        # servers of one process share what they hold
        fsspec.filesystem("s3", skip_instance_cache=True).makedirs(BUCKET, exist_ok=True)
        yield
        server.stop()
        fsspec.filesystem("s3").clear_instance_cache()  # its clients know this server's address
