"""Who is connected: counted, bounded, told."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runnel.core.errors import LimitExceeded
from runnel.server.connections import RESERVED, UNIX_SOCKET, Connections, address_of, is_this_machine


class Someone:
    def __init__(self, address: str = "127.0.0.1") -> None:
        self.peer_address = address
        self.raw_socket = None
        self.told: list[Any] = []

    def describe(self) -> dict[str, Any]:
        return {"listener": "test"}

    def drain(self, reason: str, retry: float | None) -> None:
        self.told.append((reason, retry))

    def abort(self) -> None:
        self.told.append("abort")


async def test_the_one_too_many_is_refused_with_the_name_of_the_limit() -> None:
    connections = Connections(2)
    first, second, third = Someone(), Someone(), Someone()
    assert [connections.add(first), connections.add(second)] == [1, 2]
    with pytest.raises(LimitExceeded) as refused:
        connections.add(third)
    assert (refused.value.limit, refused.value.allowed) == ("max_connections", 2)
    connections.remove(first)
    assert connections.add(third) == 3  # a number is never used twice
    assert (len(connections), connections.accepted, connections.refused) == (2, 3, 1)


async def test_a_connection_over_the_limit_does_not_outlive_the_server() -> None:
    connections = Connections(1)
    connections.add(Someone())
    ends: list[Callable[[], None]] = [lambda: connections.drain("closing time", None), connections.abort]
    for end in ends:
        late = Someone()
        with pytest.raises(LimitExceeded):
            connections.add(late)
        end()
        assert late.told == ["abort"]
        connections.remove(late)
        assert len(connections) == 1


async def test_removing_a_member_that_was_never_counted_is_harmless() -> None:
    connections = Connections(1)
    known = Someone()
    connections.add(known)
    connections.remove(Someone())
    assert list(connections) == [known]


async def test_waiting_for_the_last_one_ends_when_it_is_gone() -> None:
    connections = Connections(5)
    await connections.emptied()
    one, other = Someone(), Someone()
    connections.add(one)
    connections.add(other)
    waiting = asyncio.ensure_future(connections.emptied())
    connections.remove(one)
    await asyncio.sleep(0)
    assert not waiting.done()
    connections.remove(other)
    await waiting


async def test_a_client_that_gives_up_its_seat_and_takes_it_again_is_still_waited_for() -> None:
    connections = Connections(1)
    one, successor = Someone(), Someone()
    connections.add(one)
    waiting = asyncio.ensure_future(connections.emptied())
    await asyncio.sleep(0)
    connections.remove(one)
    connections.add(successor)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    connections.remove(successor)
    await waiting


async def test_every_client_is_notified_that_the_server_stops() -> None:
    connections = Connections(5)
    one, other = Someone(), Someone()
    connections.add(one)
    connections.add(other)
    connections.drain("closing time", 2.0)
    assert connections.draining
    connections.abort()
    assert one.told == other.told == [("closing time", 2.0), "abort"]


async def test_each_is_described_with_its_number() -> None:
    connections = Connections(5)
    connections.add(Someone())
    assert connections.describe() == [{"connection": 1, "listener": "test"}]


async def test_one_address_does_not_take_all_connections() -> None:
    connections = Connections(10, per_address=2)
    first, second, third = (Someone("10.0.0.1") for _ in range(3))
    connections.add(first)
    connections.add(second)
    with pytest.raises(LimitExceeded) as refused:
        connections.add(third)
    assert (refused.value.limit, refused.value.allowed) == ("max_peer_connections", 2)
    connections.add(Someone("10.0.0.2"))
    for _ in range(3):
        connections.add(Someone("127.0.0.1"))  # of this machine, on which a proxy may run
    connections.remove(third)  # it was not counted
    connections.remove(first)
    connections.add(third)
    with pytest.raises(LimitExceeded):
        connections.add(first)


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert address_of(("10.0.0.1", 4711)) == "10.0.0.1"
    assert address_of(("2001:db8::1", 4711, 0, 0)) == address_of(("2001:db8::2:3:4:5", 4711, 0, 0))
    assert address_of(("2001:db8::1", 4711, 0, 0)) != address_of(("2001:db8:0:1::1", 4711, 0, 0))
    assert address_of(("fe80::1%eth0", 4711, 0, 2)) == "fe80::/64"
    assert address_of("") == address_of(None) == UNIX_SOCKET
    for host, here in (("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("2001:db8::1", False)):
        assert is_this_machine(address_of((host, 1))) is here


def test_an_ipv4_address_on_an_ipv6_socket_counts_as_what_it_is() -> None:
    assert address_of(("::ffff:10.0.0.1", 4711, 0, 0)) == address_of(("10.0.0.1", 4711))
    assert not is_this_machine(address_of(("::ffff:10.0.0.1", 4711, 0, 0)))


@pytest.mark.parametrize("host", ["10.0.0.1:4711", "[2001:db8::1]:4711", "unknown", "a:b"])
def test_what_a_proxy_calls_its_client_is_an_address(host: str) -> None:
    """As of `X-Forwarded-For`, which uvicorn puts into the scope: some proxies add a port."""
    assert address_of((host, 0)) == host


async def test_the_unix_socket_has_connections_beyond_the_limit() -> None:
    connections = Connections(1)
    connections.add(Someone())
    operators = [Someone(UNIX_SOCKET) for _ in range(RESERVED)]
    for operator in operators:
        connections.add(operator)
    with pytest.raises(LimitExceeded):
        connections.add(Someone(UNIX_SOCKET))
    with pytest.raises(LimitExceeded):
        connections.add(Someone())


async def test_of_those_that_ask_for_one_thing_the_oldest_makes_room() -> None:
    connections = Connections(1)
    reserved = [Someone() for _ in range(RESERVED + 2)]
    for one in reserved:
        connections.reserve(one)
    assert [one.told for one in reserved] == [["abort"], ["abort"], *([] for _ in range(RESERVED))]
    assert len(connections) == 0
