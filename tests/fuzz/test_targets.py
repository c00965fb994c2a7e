"""The targets of `make fuzz` take what they begin with, and what is near it."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.fuzz.__main__ import NAMES, changed, target


def test_there_is_a_target_for_every_decoder() -> None:
    assert {"batch", "frames", "lines", "messages", "nats", "pgoutput", "pgtext", "tokens"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_target_takes_its_seeds_and_what_is_near_them(name: str) -> None:
    one_input, seeds = target(name)
    for data in (b"", *seeds, *islice(changed(seeds, random.Random(6)), 2_000)):
        one_input(data)
