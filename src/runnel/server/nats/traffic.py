"""Counts what the clients of a NATS listener send and receive, for `/varz`."""

from __future__ import annotations


class Traffic:
    """Traffic of the clients of one listener: messages and their bytes in both directions, without the protocol.

    `slow_consumers`: clients that were disconnected because they read too little.
    """

    __slots__ = ("in_bytes", "in_msgs", "out_bytes", "out_msgs", "slow_consumers")

    def __init__(self) -> None:
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = self.slow_consumers = 0
