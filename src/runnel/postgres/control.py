"""Commands of an operator to a relay, through its broker: pause, resume, and skip a transaction.

A command is a marker, so it is on disk, and it reaches a relay in any process, also one that starts later.
"""

from __future__ import annotations

from runnel.api.broker import Broker
from runnel.core.errors import InvalidOption, RunnelError
from runnel.postgres.config import RelayConfig
from runnel.wire.pgoutput import format_lsn, parse_lsn


class RelayStuck(RunnelError):
    """A transaction cannot be published; `lsn` says which."""

    code = "relay_stuck"

    def __init__(self, lsn: int, why: str) -> None:
        self.lsn, self.why = format_lsn(lsn), why
        super().__init__(
            f"the transaction at {self.lsn} cannot be published: {why}. Mend the cause; or pass over the transaction, "
            f"which loses its rows: runnel relay skip --lsn {self.lsn}"
        )


def _paused_marker(config: RelayConfig) -> str:
    """Holds how often the relay was paused and resumed: it is paused while the number is odd."""
    return f"relay-paused:{config.relay_name}"


def _skip_marker(config: RelayConfig) -> str:
    """Holds the commit LSN of the transaction to pass over."""
    return f"relay-skip:{config.relay_name}"


async def is_paused(broker: Broker, config: RelayConfig) -> bool:
    """Whether the relay shall not publish."""
    times = await broker.mark(_paused_marker(config))
    return isinstance(times, int) and times % 2 == 1


async def set_paused(broker: Broker, config: RelayConfig, paused: bool) -> bool:
    """Pause or resume the relay; False: it is so already."""
    before = await broker.mark(_paused_marker(config))
    times = before if isinstance(before, int) else 0
    if (times % 2 == 1) == paused:
        return False
    async with broker.transaction() as tx:
        tx.mark(_paused_marker(config), times + 1, expected=before)
    return True


async def skipped_transaction(broker: Broker, config: RelayConfig) -> int:
    """The commit LSN of the transaction to pass over; 0: none."""
    lsn = await broker.mark(_skip_marker(config))
    return lsn if isinstance(lsn, int) else 0


async def skip_transaction(broker: Broker, config: RelayConfig, lsn: str) -> None:
    """Let the relay skip the transaction whose commit is at `lsn`, when it connects the next time.

    The last command counts: it replaces an earlier LSN, even a higher one of a former server.
    """
    try:
        number = parse_lsn(lsn)
    except ValueError:
        raise InvalidOption("lsn", lsn, "expected a place in PostgreSQL's log, such as 0/16B3748") from None
    if await skipped_transaction(broker, config) > number:  # a mark does not move back
        async with broker.transaction() as tx:
            tx.mark(_skip_marker(config), None)
    async with broker.transaction() as tx:
        tx.mark(_skip_marker(config), number)
