"""Object storage on loopback: moto's S3 server, one for the tests of a worker."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

HAS_STORE = find_spec("moto") is not None and find_spec("obstore") is not None
collect_ignore = [] if HAS_STORE else ["test_backup_store.py"]  # both come with requirements/spark.lock


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server with a bucket `backups`."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(urllib.request.Request(f"{url}/backups", method="PUT")):
        pass
    yield url
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An address in the bucket that no other test has; the environment has what is needed to use it."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "runnel",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://backups/{request.node.name}"
