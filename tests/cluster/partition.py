"""A cluster whose nodes can be cut off from one another, while clients reach all of them.

`Routes` has a TCP proxy for every pair of nodes; `Namespaces` gives each node a network of its own (it takes root and
`ip`), and packets to the others vanish.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
from typing import Any, Protocol

from tests.chaos.proxy import Proxy
from tests.cluster.nodes import Node, Nodes


class Network(Protocol):
    """Between the nodes of a cluster, while the block is entered."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...

    def cut(self, node: Node) -> None:
        """Let nothing pass between a node and the others."""

    def heal(self, node: Node) -> None:
        """Let everything pass again."""


class Routes:
    """A proxy for every pair of nodes, in the process and on the loop of the test."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes.nodes
        self._proxies: dict[tuple[Node, Node], Proxy] = {}

    async def __aenter__(self) -> Routes:
        for one, other in itertools.permutations(self._nodes, 2):
            proxy = self._proxies[one, other] = Proxy(other.route_port, random.Random(1))
            await proxy.listen()
            one.through[other] = proxy.port
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in self._proxies.values():
            await proxy.__aexit__()

    def _between(self, node: Node) -> list[Proxy]:
        return [proxy for pair, proxy in self._proxies.items() if node in pair]

    def cut(self, node: Node) -> None:
        """Hold up every connection of a node to the others, and answer no new one."""
        for proxy in self._between(node):
            proxy.black_hole = True
            proxy.freeze(1.0, (0, 1))

    def heal(self, node: Node) -> None:
        """End what was held up, and let new connections pass."""
        for proxy in self._between(node):
            proxy.black_hole = False
            proxy.cut(1.0, reset=True)


class Namespaces:
    """A network namespace for each node, on one bridge."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes.nodes
        self._id = f"rn{os.getpid() % 100_000}"
        self._net = f"10.{77 + os.getpid() % 100}.0"

    async def __aenter__(self) -> Namespaces:
        bridge = self._id
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._net}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for at, node in enumerate(self._nodes):
            space, near, far = self._space(node), f"{self._id}h{at}", f"{self._id}n{at}"
            _ip("netns", "add", space)
            _ip("link", "add", near, "type", "veth", "peer", "name", far)
            _ip("link", "set", near, "master", bridge, "up")
            _ip("link", "set", far, "netns", space)
            node.host, node.inside = f"{self._net}.{at + 2}", ("ip", "netns", "exec", space)
            _ip("-n", space, "addr", "add", f"{node.host}/24", "dev", far)
            _ip("-n", space, "link", "set", far, "up")
            _ip("-n", space, "link", "set", "lo", "up")
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self._nodes:
            node.stop(signal.SIGKILL)
            _ip("netns", "del", self._space(node))
        _ip("link", "del", self._id)

    def _space(self, node: Node) -> str:
        return f"{self._id}-{node.name}"

    def cut(self, node: Node) -> None:
        """Drop every packet of a node to the others."""
        for other in self._nodes:
            if other is not node:
                _ip("-n", self._space(node), "route", "add", "blackhole", f"{other.host}/32")

    def heal(self, node: Node) -> None:
        """Drop them no more."""
        for other in self._nodes:
            if other is not node:
                _ip("-n", self._space(node), "route", "del", "blackhole", f"{other.host}/32")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
