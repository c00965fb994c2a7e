"""What Linux counts of a TCP connection, and when it says that a peer is gone."""

import socket
import sys

import pytest

from runnel.server.tcp_info import LostPeer, TcpInfo, tcp_info

WAITING = TcpInfo(in_flight=1, last_ack=20_000, acked=10, received=0)


@pytest.mark.skipif(sys.platform != "linux", reason="the structure is that of Linux")
def test_it_counts_what_the_peer_has_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        served, _ = listener.accept()
        with served:
            client.sendall(b"12345")
            assert served.recv(10) == b"12345"
            served.sendall(b"123")
            assert client.recv(10) == b"123"
            mine = tcp_info(served)
            assert mine is not None
            assert (mine.received, mine.in_flight) == (5, 0)
            assert mine.last_ack < 10_000
        assert tcp_info(served) is None
    assert tcp_info(None) is None


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        ([(second, WAITING) for second in range(8)], 6),  # from the first look on
        ([(second, WAITING._replace(in_flight=0)) for second in range(8)], None),  # idle, or its window is closed
        ([(second, WAITING._replace(acked=second)) for second in range(8)], None),  # slow
        ([(second, WAITING._replace(last_ack=200)) for second in range(8)], None),  # its window opens again
        ([(second, None) for second in range(8)], None),  # the system does not say
        ([(0, WAITING), (60, WAITING), (62, WAITING), (64, WAITING), (66, WAITING)], 66),  # no look in between
    ],
)
def test_a_peer_is_lost_that_acknowledges_nothing_of_what_is_in_flight(
    looks: list[tuple[float, TcpInfo | None]], lost: float | None
) -> None:
    peer = LostPeer()
    assert next((now for now, info in looks if peer.look(info, 1_000.0 + now)), None) == (lost)
