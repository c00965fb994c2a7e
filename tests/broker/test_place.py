"""`runnel.open`: from a place to a broker."""

from pathlib import Path

import pytest

from runnel.broker.broker import Broker
from runnel.broker.clock import SystemClock
from runnel.broker.place import open
from runnel.core.errors import InvalidOption, NotSupported
from runnel.testing.clock import JumpingClock


def test_nowhere_is_memory() -> None:
    broker = open()
    assert isinstance(broker, Broker)
    assert isinstance(broker.clock, SystemClock)


def test_a_clock_may_be_given() -> None:
    clock = JumpingClock()
    assert open(clock=clock).clock is clock


@pytest.mark.parametrize("where", ["data/", Path("data"), "runnel://host:7788", ""])
def test_any_other_place_is_not_there_yet(where: str | Path) -> None:
    with pytest.raises(NotSupported, match=r"use runnel\.open\(\)"):
        open(where)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(InvalidOption, match="auto_create and clock") as caught:
        open(autocreate=False)
    assert (caught.value.option, caught.value.value) == ("autocreate", False)
