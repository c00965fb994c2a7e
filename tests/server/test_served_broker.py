"""What all listeners share."""

from pathlib import Path

import runnel
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ListenerAddress, ServedBroker
from runnel.testing.clock import JumpingClock
from tests.brokers import local_broker


async def test_a_broker_in_memory_syncs_nothing_and_tells_how_long_it_is_up() -> None:
    clock = JumpingClock()
    async with local_broker(clock=clock) as broker:
        serving = ServedBroker(broker, ServerOptions())
        serving.listeners.append(ListenerAddress("native", "runnel://127.0.0.1:1", "127.0.0.1", 1))
        await clock.advance(90)
        told = serving.describe()
        assert (told["journal"], told["fsync"], told["uptime"]) == (broker.id, None, 90)
        assert told["listeners"] == [{"name": "native", "url": "runnel://127.0.0.1:1"}]
        assert told["limits"]["ping"] == 15.0


async def test_a_folder_is_known_by_its_journal_in_every_life(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        async with runnel.open(tmp_path, fsync="interval") as broker:
            serving = ServedBroker(broker, ServerOptions())
            assert serving.fsync == "interval"
            seen.append(serving.journal)
    assert seen[0]
    assert seen[0] == seen[1]
