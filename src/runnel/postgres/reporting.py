"""What a relay or an archive reports to its broker once a second, for metrics, the console and `runnel top`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from runnel.api.broker import Broker
from runnel.core.errors import NotSupported, RunnelError
from runnel.core.statistics import RelayStatistics

log = logging.getLogger("runnel.postgres")

REPORT_SECONDS = 1.0


class Reporting(Protocol):
    """A relay or an archive."""

    broker: Broker
    last_error: str | None


@asynccontextmanager
async def reported(one: Reporting, report: Callable[[], RelayStatistics]) -> AsyncIterator[None]:
    """Report while the block runs, and at its end that `one` stopped or failed."""
    reporting, last_state = asyncio.create_task(_report(one.broker, report)), "stopped"
    try:
        yield
    except Exception as error:
        one.last_error, last_state = str(error), "failed"
        raise
    finally:
        reporting.cancel()
        await asyncio.wait([reporting])
        await _tell(one.broker, msgspec.structs.replace(report(), state=last_state))


async def _report(broker: Broker, report: Callable[[], RelayStatistics]) -> None:
    takes_reports = True
    while takes_reports:
        takes_reports = await _tell(broker, report())
        await asyncio.sleep(REPORT_SECONDS)


async def _tell(broker: Broker, report: RelayStatistics) -> bool:
    """Send a report; False: the broker takes none. A report that is lost does not matter: the next one comes."""
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            await broker.backend.report_relay(report)
    except NotSupported:
        return False
    except (RunnelError, OSError, TimeoutError) as error:
        log.debug("%s %s: the broker took no report: %s", report.kind, report.slot, error)
    return True
