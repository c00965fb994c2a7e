"""Object storage on loopback: moto's S3 server, and the environment that leads to it."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served() -> Iterator[dict[str, str]]:
    """A server with a bucket `backups`; what the environment has to have to use it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(urllib.request.Request(f"{url}/backups", method="PUT")):
        pass
    yield {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "runnel",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
    }
    server.stop()
