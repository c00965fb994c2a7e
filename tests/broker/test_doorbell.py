"""The doorbell: rung by any thread, heard once."""

import os
import threading

import pytest

from runnel.broker.doorbell import Doorbell


@pytest.fixture(params=["eventfd", "pipe"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Doorbell:
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    return Doorbell()


def test_a_ring_before_the_wait_is_heard(bell: Doorbell) -> None:
    bell.ring()
    assert bell.wait()
    assert not bell.wait(0), "and only once"
    bell.close()


def test_whoever_waits_is_woken_by_another_thread(bell: Doorbell) -> None:
    heard = threading.Event()

    def waiting() -> None:
        bell.wait()
        heard.set()

    thread = threading.Thread(target=waiting)
    thread.start()
    bell.ring()
    assert heard.wait(10)
    thread.join()
    bell.close()


def test_a_wait_with_a_limit_ends_and_one_that_rang_says_so(bell: Doorbell) -> None:
    assert not bell.wait(0.001)
    assert not bell.wait(-1), "a limit that has passed is none at all"
    bell.ring()
    assert bell.wait(10)
    bell.close()
