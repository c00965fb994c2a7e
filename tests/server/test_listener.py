"""Listening sockets: addresses, and the rate."""

import asyncio
import errno
import resource
import socket
import sys
from typing import Any

import pytest

from runnel.core.errors import AddressInUse, InvalidOption, PublicBindRefused
from runnel.server import listener
from runnel.server.connections import RESERVED
from runnel.server.listener import Acceptor, AcceptRate, bind_tcp, connections_allowed, handles_for_connections


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


async def test_port_0_takes_one_that_is_free() -> None:
    sockets = await bind_tcp("127.0.0.1", 0, insecure_public=False)
    assert sockets[0].getsockname()[1] > 0
    close(sockets)


async def test_all_addresses_of_a_name_share_one_port() -> None:
    sockets = await bind_tcp("localhost", 0, insecure_public=False)
    assert len({one.getsockname()[1] for one in sockets}) == 1
    close(sockets)


async def test_a_port_that_is_taken_is_said_with_its_address() -> None:
    sockets = await bind_tcp("127.0.0.1", 0, insecure_public=False)
    port = sockets[0].getsockname()[1]
    with pytest.raises(AddressInUse, match="choose another port") as refused:
        await bind_tcp("127.0.0.1", port, insecure_public=False)
    assert refused.value.address == f"127.0.0.1:{port}"
    close(sockets)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
async def test_an_address_that_others_can_reach_is_refused_unless_it_is_meant(host: str) -> None:
    with pytest.raises(PublicBindRefused, match="insecure-public") as refused:
        await bind_tcp(host, 0, insecure_public=False)
    assert refused.value.host == host


async def test_a_public_address_that_is_meant_is_bound() -> None:
    sockets = await bind_tcp("0.0.0.0", 0, insecure_public=True)
    assert sockets[0].getsockname()[0] == "0.0.0.0"
    close(sockets)


async def test_an_address_of_another_machine_and_a_name_of_none_are_refused() -> None:
    with pytest.raises(InvalidOption, match="cannot listen there"):
        await bind_tcp("192.0.2.1", 0, insecure_public=True)
    with pytest.raises(InvalidOption, match="no such name"):
        await bind_tcp("no such host", 0, insecure_public=True)


def test_so_many_a_second_are_let_in_and_a_tenth_of_it_at_once() -> None:
    rate, now, admitted = AcceptRate(100), 0.0, []
    while now < 2.0:
        pause = rate.pause(now)
        if pause:
            now += pause
        else:
            admitted.append(now)
    assert admitted[:10] == [0.0] * 10
    assert 195 <= len(admitted) <= 211
    for at in range(len(admitted) - 30):
        assert admitted[at + 30] - admitted[at] >= 0.19  # never more than the burst and the rate together


def test_absent_members_are_not_counted() -> None:
    rate = AcceptRate(10)
    assert rate.pause(0.0) == 0
    rate.give_back()
    assert rate.pause(0.0) == 0
    assert rate.pause(0.0) > 0


def test_a_long_quiet_time_saves_no_more_than_a_burst() -> None:
    rate = AcceptRate(100)
    assert rate.pause(0.0) == 0
    assert sum(rate.pause(1000.0) == 0 for _ in range(50)) == 10


class Counting(asyncio.Protocol):
    made: list[float]

    def __init__(self, made: list[float], enough: asyncio.Event, wanted: int) -> None:
        self._made, self._enough, self._wanted = made, enough, wanted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(asyncio.get_running_loop().time())
        if len(self._made) == self._wanted:
            self._enough.set()


async def test_a_storm_is_let_in_a_few_at_a_time_and_no_connection_is_lost() -> None:
    made: list[float] = []
    enough = asyncio.Event()
    sockets = await bind_tcp("127.0.0.1", 0, insecure_public=False)
    address = sockets[0].getsockname()
    listening = Acceptor(sockets, lambda: Counting(made, enough, 120), AcceptRate(200))
    clients = [socket.create_connection(address) for _ in range(120)]  # the system answers for us: all wait in line
    await enough.wait()
    assert made[-1] - made[0] >= 0.4  # 20 at once, the rest at 200 a second
    close(clients)
    listening.close()


async def test_after_closing_no_connection_is_accepted() -> None:
    sockets = await bind_tcp("127.0.0.1", 0, insecure_public=False)
    address = sockets[0].getsockname()
    Acceptor(sockets, asyncio.Protocol, AcceptRate(100)).close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def test_when_the_system_has_no_handles_left_it_waits_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "ACCEPT_PAUSE", 0.01)
    made: list[float] = []
    enough = asyncio.Event()
    sockets = await bind_tcp("127.0.0.1", 0, insecure_public=False)

    class Poor(socket.socket):
        failures = 3

        def accept(self) -> tuple[socket.socket, Any]:
            if Poor.failures:
                Poor.failures -= 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    poor = Poor(fileno=sockets[0].detach())
    poor.setblocking(False)
    listening = Acceptor([poor], lambda: Counting(made, enough, 1), AcceptRate(1000))
    client = socket.create_connection(poor.getsockname())
    await enough.wait()
    assert Poor.failures == 0
    assert "ulimit" in caplog.text
    client.close()
    listening.close()


def test_some_handles_are_kept_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed, expected in (
        (1024, 1024 - listener.RESERVED_HANDLES),
        (40, 30),
        (resource.RLIM_INFINITY, sys.maxsize),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        assert handles_for_connections() == expected


async def test_the_last_handles_are_not_given_to_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or whoever opens very many of them would make the journal fail."""
    monkeypatch.setattr(listener, "handles_for_connections", lambda: 0)
    sockets = await bind_tcp("127.0.0.1", 0, insecure_public=False)
    acceptor = Acceptor(sockets, asyncio.Protocol, AcceptRate(1000))
    reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
    assert await reader.read() == b""
    assert "ulimit -n" in caplog.text
    writer.close()
    acceptor.close()


def test_a_server_takes_no_more_connections_than_it_has_handles_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections_allowed(1) == 1
    with socket.socket() as probe:
        used = probe.fileno()
    monkeypatch.setattr(listener, "handles_for_connections", lambda: used + 2 * RESERVED + 100)
    assert connections_allowed(50) == 50
    assert connections_allowed(10_000) == 100  # health checks and the Unix socket have handles left
    monkeypatch.setattr(listener, "handles_for_connections", lambda: used)
    assert connections_allowed(10_000) == 1
