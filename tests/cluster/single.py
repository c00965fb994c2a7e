"""One nats-server for all tests of a process that need no cluster: each gets a stream of its own."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import runnel
from runnel import Broker
from tests.cluster.nodes import Nodes

_streams = count(1)


@cache
def single() -> Nodes:
    """The server, started when it is first needed, and ended with the process."""
    folder = Path(tempfile.mkdtemp(prefix="runnel-nats-"))
    nodes = Nodes(folder, 1).start()

    def stop() -> None:
        nodes.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return nodes


def new_stream() -> str:
    """The name of a stream that no other test uses."""
    return f"T{next(_streams)}"


def open_cluster(stream: str | None = None, **options: Any) -> Broker:
    """A broker on the server, with a stream of its own."""
    node = single().nodes[0]
    return runnel.open(node.url, stream=stream or new_stream(), monitor=node.monitor, **options)
