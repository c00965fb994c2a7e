"""Sockets that the child of a fork lets go of, while its parent keeps them."""

import os
import socket

from runnel.runtime.loop_owner import detach_sockets


def test_what_is_let_go_of_is_nothing_any_more_and_its_number_stays_taken() -> None:
    one, other = socket.socketpair()
    with one, other, one.dup() as copy:
        detach_sockets([one.fileno(), -1])
        copy.send(b"still here")
        assert other.recv(100) == b"still here", "whoever has it too keeps it, and nobody was told"
        copy.close()
        assert other.recv(100) == b"", "and ends it"
        assert os.path.samefile(f"/proc/self/fd/{one.fileno()}", os.devnull)


def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    detach_sockets([])
    assert len(os.listdir("/proc/self/fd")) == before
