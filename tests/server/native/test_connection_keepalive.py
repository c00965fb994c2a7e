"""Silence, a ping, and the end of patience; time is an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.server.native.connection import Keepalive, KeepaliveAction


def test_a_peer_that_talks_is_left_alone() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.next == 15
    assert keepalive.look(15, heard=14) is KeepaliveAction.ALIVE
    assert keepalive.next == 29  # fifteen seconds after it was heard


def test_a_silent_peer_is_asked_and_given_up_on_when_it_does_not_answer() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.look(15, heard=0) is KeepaliveAction.ASK
    assert keepalive.next == 25
    assert keepalive.look(25, heard=0) is KeepaliveAction.DEAD


def test_a_peer_that_answers_at_the_last_moment_is_alive() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.look(15, heard=0) is KeepaliveAction.ASK
    assert keepalive.look(25, heard=24.9) is KeepaliveAction.ALIVE
    assert keepalive.next == 24.9 + 15


def test_looking_too_early_kills_nobody() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.look(15, heard=0) is KeepaliveAction.ASK
    assert keepalive.look(20, heard=0) is KeepaliveAction.ALIVE
    assert keepalive.next == 25


def test_whom_nobody_listens_to_is_asked_again_and_never_given_up_on() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    for now in (15, 25, 35, 45):
        assert keepalive.look(now, heard=0, read_paused=True) is KeepaliveAction.ASK
    assert keepalive.look(55, heard=0) is KeepaliveAction.DEAD  # listened to again: the last ping was not answered


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_peer_is_gone_ping_and_timeout_after_it_was_last_heard(said: list[float]) -> None:
    keepalive, heard, now = Keepalive(15, 10, now=0.0), 0.0, 0.0
    while True:
        now = keepalive.next
        heard = max([heard, *(moment for moment in said if moment <= now)])
        if keepalive.look(now, heard) is KeepaliveAction.DEAD:
            break
        assert keepalive.next > now
    assert now == pytest.approx(heard + 15 + 10)
