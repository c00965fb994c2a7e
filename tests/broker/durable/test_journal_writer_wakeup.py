"""The wake-up pipe: written by any thread, read once."""

import threading
from collections.abc import Iterator

import pytest

from runnel.broker.durable.journal_writer import WakeupPipe
from tests.patience import PATIENCE


@pytest.fixture
def bell() -> Iterator[WakeupPipe]:
    bell = WakeupPipe()
    yield bell
    bell.close()


def test_a_ring_before_the_wait_is_heard(bell: WakeupPipe) -> None:
    bell.signal()
    assert bell.wait()
    assert not bell.wait(0), "and only once"


def test_whoever_waits_is_woken_by_another_thread(bell: WakeupPipe) -> None:
    heard = threading.Event()

    def waiting() -> None:
        bell.wait()
        heard.set()

    thread = threading.Thread(target=waiting)
    thread.start()
    bell.signal()
    assert heard.wait(PATIENCE)
    thread.join()


def test_a_wait_with_a_limit_ends_and_one_that_rang_says_so(bell: WakeupPipe) -> None:
    assert not bell.wait(0.001)
    assert not bell.wait(-1), "a limit that has passed is none at all"
    bell.signal()
    assert bell.wait(PATIENCE)


def test_it_can_be_rung_without_end_and_is_heard_once(bell: WakeupPipe) -> None:
    for _ in range(70_000):  # more than a pipe holds
        bell.signal()
    heard = 0
    while bell.wait(0):
        heard += 1
    assert 1 <= heard <= 17
