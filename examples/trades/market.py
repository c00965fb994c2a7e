"""A small market that never closes: prices walk at random, ticks come a little late, and now and then very late."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated

import msgspec

SYMBOLS = {"ACME": 120.0, "BOLT": 14.5, "CORK": 63.2, "DUNE": 310.0}
JUMP = 0.01  # of the ticks the price jumps, by up to a twentieth
LATE = 0.02  # of the ticks come late, by up to `LATEST`
LATEST = timedelta(seconds=12)


class Tick(msgspec.Struct):
    """One trade. The zone is part of the type, so that tables get a timestamp of it."""

    symbol: str
    price: float
    size: int
    at: Annotated[datetime, msgspec.Meta(tz=True)]


def ticks(seed: int) -> Iterator[tuple[Tick, timedelta]]:
    """Trades without end, and how late each comes; `at` is for the caller to say, who has the clock."""
    chance, prices = random.Random(seed), dict(SYMBOLS)
    while True:
        symbol = chance.choice(list(prices))
        step = chance.uniform(-0.05, 0.05) if chance.random() < JUMP else chance.gauss(0, 0.0005)
        prices[symbol] = max(0.01, prices[symbol] * (1 + step))
        late = LATEST * chance.random() if chance.random() < LATE else timedelta()
        yield Tick(symbol, round(prices[symbol], 2), chance.randint(1, 500), datetime.min), late
