"""Object storage on loopback: moto's S3 server, one for the tests of a worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem

_KEYS = {"AWS_ACCESS_KEY_ID": "runnel", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """The storage options of a store with a bucket `lake`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    store = S3FileSystem(
        access_key="runnel",
        secret_key="secret",
        region="us-east-1",
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        allow_bucket_creation=True,
    )
    store.create_dir("lake")
    yield {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", **_KEYS}
    server.stop()
