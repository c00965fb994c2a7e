"""From an atomic write to its batches: stages among publishes keep their order and cost no memory."""

import asyncio
from datetime import UTC, datetime

from runnel.broker.durable.commit import AtomicWrite, StageCommitBatch, batches_of
from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import DurableTopic, PendingBatch
from runnel.core.batch_format import unpack
from runnel.core.publishing import Append
from runnel.journal.format.entry import PartKind
from runnel.journal.format.ledger import StageState
from tests.broker.broker_parts import make_log, make_timeline


def durable(name: str, end: int = 0) -> Log:
    log = make_log(name)
    log.revive(0, end, end)
    log.stored = DurableTopic(len(name), end)
    return log


def entry(*values: bytes) -> Append:
    return Append(values, None, sum(map(len, values)))


def stage(*counts: int) -> StageState:
    return StageState(9, "w", 1, 0, 0, 1, 0, list(counts), 1000)


def atomic_write(*entries: tuple[Log, Append | StageState]) -> AtomicWrite:
    return AtomicWrite(entries, (), lambda: None, lambda error: None)


async def test_entries_of_a_topic_are_one_batch_unless_something_lies_between() -> None:
    one, other = durable("t", 5), durable("uu")
    large = stage(10, 20)
    batches, firsts = batches_of(
        atomic_write(
            (one, entry(b"a")),
            (other, entry(b"x")),
            (one, entry(b"b", b"c")),
            (one, entry(b"e")),
            (one, large),
            (one, entry(b"d")),
        ),
        asyncio.get_running_loop(),
    )
    assert firsts == [5, 0, 6, 8, 9, 39]
    assert [(batch.log.name, batch.first, batch.count, batch.end) for batch in batches] == [
        ("t", 5, 1, 6),
        ("uu", 0, 1, 1),
        ("t", 6, 3, 9),
        ("t", 9, 30, 39),
        ("t", 39, 1, 40),
    ]
    assert unpack(batches[2].packed or b"").values == (b"b", b"c", b"e")
    assert one.stored is not None
    assert one.stored.next == 5, "nothing is given before all of it is known to be right"


async def test_a_stage_is_written_as_a_few_bytes_and_lands_beside_memory() -> None:
    log, timeline = durable("t", 5), make_timeline()
    (batch,), _ = batches_of(atomic_write((log, stage(10, 20))), asyncio.get_running_loop())
    assert isinstance(batch, StageCommitBatch)
    batch.sequence = 100
    (part,) = batch.parts(7, 123)
    assert (part.kind, part.topic, part.base, part.last, part.sequence, part.time) == (
        PartKind.STAGE_COMMIT,
        1,
        5,
        34,
        100,
        123,
    )
    assert len(part.body) < 20
    assert (batch.weight, batch.size, batch.pack(), batch.takes(entry(b"x"))) == (0, 1000, b"", False)
    batch.land(timeline, datetime.now(UTC))
    assert (log.base, log.end, log.values, log.count_bytes()) == (35, 35, [], 1005)


async def test_what_a_unit_weighs_leaves_stages_out() -> None:
    log = durable("t")
    assert atomic_write((log, entry(b"abc")), (log, stage(5))).size == 3
    assert isinstance(batches_of(atomic_write((log, entry(b"abc"))), asyncio.get_running_loop())[0][0], PendingBatch)
