"""Ports to come back to, for what listens, goes away and listens there again."""

import os
import random
import re
import socket
from contextlib import suppress

EACH = 800  # ports for each process that runs tests: none takes one that another just gave up
FIRST, PROCESSES = 20_000, 12


def free_port() -> int:
    """A port that is free, and that the system gives to nobody who asks for any port while it is."""
    worker = int((re.findall(r"\d+", os.environ.get("PYTEST_XDIST_WORKER", "")) or ["0"])[0]) % PROCESSES
    while True:
        port = FIRST + worker * EACH + random.SystemRandom().randrange(EACH)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
