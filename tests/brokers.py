"""Brokers in this process with parts of a test's choice, which `runnel.open` does not take."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.api.broker import Broker
from runnel.broker.backend import LocalBackend
from runnel.broker.durable.folder import BrokerFolder
from runnel.core.clock import Clock
from runnel.core.history import HistorySource


def local_broker(
    *,
    auto_create: bool = True,
    clock: Clock | None = None,
    folder: BrokerFolder | None = None,
    history: Sequence[HistorySource] = (),
) -> Broker:
    """A broker in memory, or in `folder`."""
    return Broker(LocalBackend(auto_create=auto_create, clock=clock, folder=folder, history=history))
