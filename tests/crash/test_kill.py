"""`kill -9` of a process that publishes and consumes under load, again and again; judged by what its clients saw.

`python -m tests.crash.killing` does the same for as long as one likes.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import runnel
from runnel.broker.read.catch_up import END, CatchUp
from runnel.journal.format.index import IndexBuilder
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import SegmentReader
from runnel.journal.storage import OsStorage
from runnel.testing import JumpingClock
from runnel.testing import history_events as events
from tests.crash.kill_judge import Found, Told, judge
from tests.crash.kill_worker import BILLING, JOBS, ORDERS
from tests.crash.killing import Trial
from tests.nightly import nightly_beyond

SEEDS = (9, 1, 2, 3)  # by the first one it is killed twice at each kind of moment
KILLS = 8
MOMENTS = {"opening", "load", "roll", "closing"}


@pytest.mark.parametrize("seed", nightly_beyond(1, SEEDS))
def test_a_killed_process_keeps_every_promise_it_made(tmp_path: Path, seed: int) -> None:
    trial = Trial(seed, KILLS, tmp_path / "data").run()
    assert not trial.broken, f"seed {seed}:\n" + "\n".join(trial.broken)[:5000]
    assert len(trial.told.acknowledged) > 50
    assert trial.moments.total() == KILLS
    if seed == SEEDS[0]:
        assert trial.moments.keys() == MOMENTS
        assert trial.inspections, "the folder was never read while its owner worked"
        every_broken_promise_is_seen(trial)


# -- the judge sees what it is there for --------------------------------------------------------------------------


def an_acknowledged_record_is_gone(told: Told, found: Found) -> None:
    del found.held[next(place for place in told.acknowledged if place[0] == JOBS)]


def another_record_stands_there(told: Told, found: Found) -> None:
    found.held[next(place for place in told.acknowledged if place[0] == ORDERS)] = "another"


def half_a_batch_is_there(told: Told, found: Found) -> None:
    place = next(place for place, id in found.held.items() if "-0/" in id)
    told.acknowledged.pop(place, None)
    del found.held[place]


def a_name_skipped_a_record(told: Told, found: Found) -> None:
    place = next(place for place in found.held if place[0] == ORDERS)
    told.lines = [
        (life, said)
        for life, said in told.lines
        if not (isinstance(said, events.Delivered) and said.subscriber == "keeper" and said.offset == place[2])
    ]


def a_durable_ack_was_forgotten(told: Told, found: Found) -> None:
    acked = next(said for _, said in told.lines if isinstance(said, events.Acked) and said.topic == JOBS)
    life, lease = next(
        (life, said)
        for life, said in told.lines
        if isinstance(said, events.Leased) and (said.group, said.topic, said.offset) == (BILLING, JOBS, acked.offset)
    )
    told.lines.append((life + 100, msgspec.structs.replace(lease, at=1e12)))


def a_record_was_never_settled(told: Told, found: Found) -> None:
    place = max(place for place in found.held if place[0] == JOBS)
    told.lines = [(life, said) for life, said in told.lines if getattr(said, "offset", None) != place[2]]


def a_dead_letter_is_gone(told: Told, found: Found) -> None:
    found.dead.pop()


def a_dead_letter_is_there_twice(told: Told, found: Found) -> None:
    found.dead.append(found.dead[0])


def a_position_names_two_records(told: Told, found: Found) -> None:
    life, said = next((life, said) for life, said in told.lines if isinstance(said, events.Acknowledged))
    told.lines.insert(0, (0, events.Intended(0.0, said.topic, "another", "somebody")))
    told.lines.append((life, events.Acknowledged(said.at, said.topic, "another", said.epoch, said.offset)))


HARMS = {
    an_acknowledged_record_is_gone: "was acknowledged, but None is there",
    another_record_stands_there: "was acknowledged, but another is there",
    half_a_batch_is_there: "is not whole",
    a_name_skipped_a_record: "keeper never got",
    a_durable_ack_was_forgotten: "had settled it",
    a_record_was_never_settled: "is not done with",
    a_dead_letter_is_gone: "has 0 dead letters",
    a_dead_letter_is_there_twice: "has 2 dead letters",
    a_position_names_two_records: "names two records",
}


def every_broken_promise_is_seen(trial: Trial) -> None:
    """The judge sees each harm that is done to what a trial told and found."""
    for harm, sentence in HARMS.items():
        told, found = copy.copy(trial.told), copy.deepcopy(trial.found)
        told.lines, told.acknowledged = list(told.lines), dict(told.acknowledged)
        harm(told, found)
        assert sentence in "\n".join(judge(told, found)), harm.__name__


# -- what kills have found ----------------------------------------------------------------------------------------


async def test_dead_letters_survive_their_process(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.publish("jobs", b"bad")
        async with broker.subscribe("jobs", group="g") as deliveries:
            async for delivery in deliveries:
                await delivery.reject("no good")
                break
    async with runnel.open(tmp_path) as broker, broker.subscribe("dead-letters.g", start="earliest") as letters:
        assert (await anext(aiter(letters))).value == b"bad"


async def test_a_topic_in_memory_never_gets_an_epoch_that_another_life_gave(tmp_path: Path) -> None:
    clock = JumpingClock()  # it stands still: the journal alone knows what was given out
    epochs = []
    for _ in range(3):
        async with runnel.open(tmp_path, clock=clock) as broker:
            await broker.publish("stored", b"")
            epochs.append((await broker.topic("memory", durable=False).publish(b"")).epoch)
    assert len(set(epochs)) == 3


def test_an_entry_that_is_still_being_written_is_no_damage(tmp_path: Path) -> None:
    builder = IndexBuilder()
    source = SegmentReader(OsStorage(tmp_path), SegmentInfo(1, 1, first_sequence=10), builder)
    source.written = 384
    builder.add(384, topic=1, base=0, last=0, sequence=10, time=0, size=1)  # in the index, and not to be read yet
    store: Any = SimpleNamespace(journal=SimpleNamespace(history=JournalReader([source])), keeps_packed=False)
    store.read = lambda plan, came: came(plan, b"")
    assert CatchUp(store, dict, lambda: None, sequence=True).take(10, 1) is END
