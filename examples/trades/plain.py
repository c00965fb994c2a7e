"""Candles in plain Python, from all ticks at once: what those of the pipeline are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from examples.trades.market import Tick


class Candle(NamedTuple):
    symbol: str
    start: datetime
    open: float
    high: float
    low: float
    close: float
    volume: int
    ticks: int


def candles(ticks: Iterable[Tick], width: timedelta) -> list[Candle]:
    """One for each symbol and window that has ticks, in order."""
    windows: dict[tuple[str, datetime], list[Tick]] = {}
    for tick in ticks:
        since = tick.at - datetime.fromtimestamp(0, UTC)
        windows.setdefault((tick.symbol, tick.at - since % width), []).append(tick)
    return [_candle(symbol, start, windows[symbol, start]) for symbol, start in sorted(windows)]


def _candle(symbol: str, start: datetime, ticks: list[Tick]) -> Candle:
    ordered = sorted(ticks, key=lambda tick: tick.at)
    prices = [tick.price for tick in ordered]
    volume = sum(tick.size for tick in ordered)
    return Candle(symbol, start, prices[0], max(prices), min(prices), prices[-1], volume, len(prices))
