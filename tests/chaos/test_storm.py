"""A server that is killed under load, behind a bad network: what its clients saw, judged.

`python -m tests.chaos.storm` does the same for longer.
"""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import pytest

from runnel.testing import history_events as events
from runnel.testing.history_events import Event
from tests.chaos.storm import Storm
from tests.chaos.storm_judge import Found, judge
from tests.chaos.words import BILLING, JOBS, ORDERS, PAID, PAYERS
from tests.crash.kill_worker import Note
from tests.nightly import nightly_beyond

Told = list[Event | Note]


@pytest.mark.parametrize("kills", nightly_beyond(1, [2, 4]))
async def test_nothing_is_lost_doubled_or_reordered(tmp_path: Path, kills: int) -> None:
    storm = await Storm(3, kills, tmp_path / "data").run()
    assert not storm.broken, f"{storm}\n" + "\n".join(storm.broken)[:5000]
    assert storm.manners.total() == kills
    assert storm.troubles.total() >= kills
    assert storm.reconnects >= 3 * kills
    assert len(storm.found.held) > 150 * kills
    every_broken_promise_is_seen(storm)


# -- the judge sees what it is there for --------------------------------------------------------------------------


def _place(found: Found, topic: str) -> tuple[str, int, int]:
    return next(place for place in found.held if place[0] == topic)


def an_acknowledged_record_is_gone(told: Told, found: Found) -> None:
    one = next(said for said in told if isinstance(said, events.Acknowledged))
    del found.held[one.topic, int(one.epoch), one.offset]


def what_was_not_waited_for_is_gone(told: Told, found: Found) -> None:
    one = next(said for said in told if isinstance(said, Note) and said.what == "stored")
    found.held = {place: id for place, id in found.held.items() if (place[0], id) != (one.topic, one.text)}


def a_record_is_there_twice(told: Told, found: Found) -> None:
    topic, epoch, offset = _place(found, ORDERS)
    found.held[topic, epoch, offset + 1_000_000] = found.held[topic, epoch, offset]


def half_a_batch_is_there(told: Told, found: Found) -> None:
    del found.held[next(place for place, id in found.held.items() if "-0/" in id)]


def half_a_transaction_is_there(told: Told, found: Found) -> None:
    del found.held[next(place for place, id in found.held.items() if id.endswith(".tx2"))]


def what_a_publisher_sent_changed_places(told: Told, found: Found) -> None:
    first, second = [place for place, id in found.held.items() if place[0] == JOBS and id.startswith("p1.1.")][:2]
    found.held[first], found.held[second] = found.held[second], found.held[first]


def a_name_skipped_a_record(told: Told, found: Found) -> None:
    offset = _place(found, ORDERS)[2]
    told[:] = [
        said
        for said in told
        if not (isinstance(said, events.Delivered) and (said.subscriber, said.offset) == ("keeper", offset))
    ]


def a_name_got_a_record_twice(told: Told, found: Found) -> None:
    at = next(n for n, said in enumerate(told) if isinstance(said, events.Delivered) and said.subscriber == "keeper")
    told.insert(at, told[at])


def a_durable_ack_was_forgotten(told: Told, found: Found) -> None:
    acked = next(said for said in told if isinstance(said, events.Acked) and said.group == BILLING)
    lease = next(
        said
        for said in told
        if isinstance(said, events.Leased) and (said.group, said.offset) == (BILLING, acked.offset)
    )
    told.append(msgspec.structs.replace(lease, at=1e12, until=1e11))


def a_record_was_acked_by_two(told: Told, found: Found) -> None:
    told.append(next(said for said in told if isinstance(said, events.Acked)))


def a_record_was_given_to_nobody(told: Told, found: Found) -> None:
    offset = _place(found, JOBS)[2]
    told[:] = [
        said for said in told if not (isinstance(said, events.Leased) and (said.topic, said.offset) == (JOBS, offset))
    ]


def records_of_a_key_were_given_in_another_order(told: Told, found: Found) -> None:
    key = found.keys[next(place for place in found.keys if place[0] == JOBS)]
    later = [place for place, other in found.keys.items() if place[0] == JOBS and other == key][-1]
    at = next(
        n for n, said in enumerate(told) if isinstance(said, events.Leased) and (said.topic, said.offset) == later[::2]
    )
    told[at] = msgspec.structs.replace(told[at], at=0.0)


def a_payment_was_made_twice(told: Told, found: Found) -> None:
    a_record_is_there_twice(told, found)
    topic, epoch, offset = _place(found, PAID)
    found.held[topic, epoch, offset + 1_000_000] = found.held[topic, epoch, offset]


def a_payment_was_not_made(told: Told, found: Found) -> None:
    del found.held[next(place for place, id in found.held.items() if place[0] == PAID and not id.startswith("end"))]


def a_dead_letter_is_there_twice(told: Told, found: Found) -> None:
    found.dead += 2 * [_place(found, JOBS)]


def somebody_failed(told: Told, found: Found) -> None:
    told.append(Note("failed", 0.0, PAYERS, text="for some reason"))


HARMS = {
    an_acknowledged_record_is_gone: "was acknowledged, and None is there",
    what_was_not_waited_for_is_gone: "and is not there",
    a_record_is_there_twice: "is 2 times in",
    half_a_batch_is_there: "is not whole",
    half_a_transaction_is_there: "is in 1 topics",
    what_a_publisher_sent_changed_places: "and it stands before it",
    a_name_skipped_a_record: "keeper never got",
    a_name_got_a_record_twice: "'keeper' got",
    a_durable_ack_was_forgotten: "after it was acked",
    a_record_was_acked_by_two: "was durably acked by",
    a_record_was_given_to_nobody: "to nobody",
    records_of_a_key_were_given_in_another_order: "of key",
    a_payment_was_made_twice: "ought to be 1 times",
    a_payment_was_not_made: "is 0 times in paid",
    a_dead_letter_is_there_twice: "has 2 dead letters",
    somebody_failed: "for some reason",
}


def every_broken_promise_is_seen(storm: Storm) -> None:
    """The judge sees each harm that is done to what a storm told and found."""
    for harm, sentence in HARMS.items():
        told, found = list(storm.told), copy.deepcopy(storm.found)
        harm(told, found)
        assert sentence in "\n".join(judge(told, found)), harm.__name__
