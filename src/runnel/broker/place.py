"""Where a broker lives: `runnel.open` turns a place into a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runnel.broker.broker import Broker
from runnel.core.clock import Clock
from runnel.core.errors import InvalidOption, NotSupported


def open(
    where: str | Path | None = None, *, auto_create: bool = True, clock: Clock | None = None, **options: Any
) -> Broker:
    """A broker, to be used with `async with`.

    `where` is None: in memory, in this process. With `auto_create=False` topics must be declared
    before they are used. `clock` replaces the system's, for tests.
    """
    if where is not None:
        raise NotSupported(f"open({str(where)!r})", "this version keeps topics in memory only; use runnel.open()")
    for name, value in options.items():
        raise InvalidOption(name, value, "a broker in memory takes auto_create and clock")
    return Broker(auto_create=auto_create, clock=clock)
