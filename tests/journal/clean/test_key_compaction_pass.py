from __future__ import annotations

import pytest

from runnel.journal.clean.key_compaction import KeyPass, TopicKeys
from tests.journal.clean.test_key_compaction import Keyed


def example() -> Keyed:
    """A topic of which some keys were published twice or three times, beside records without a key."""
    keyed = Keyed()
    for number in range(30):
        keyed.publish((b"%d" % (number % 13), b"%d" % number * 30), (None, b"x"))
    keyed.seal()
    return keyed


def again(keyed: Keyed) -> None:
    """More, that supersedes some of it: with tombstones, and a stage."""
    for number in range(20):
        keyed.publish((b"%d" % (number % 9), b"" if number % 7 == 0 else b"new" * 20))
    keyed.stage(*[[(b"%d" % (number % 11), b"staged" * 20)] for number in range(15)])
    keyed.seal()


def passed(keyed: Keyed, known: TopicKeys, stop: int | None = None) -> KeyPass:
    """A pass over all of it; cut off after some steps, noted, and gone on with."""
    journal = keyed.writer.journal
    end = journal.ledger.topics[keyed.topic].end
    found = KeyPass(journal.history, keyed.topic, known, (0, end), 0, 1000)
    steps = 0
    while not found.done:
        found.step()
        steps += 1
        if steps == stop:
            found = KeyPass.resumed(journal.history, known, found.note(), 1000)
    return found


def told(known: TopicKeys, found: KeyPass) -> tuple[object, ...]:
    return known.surveyed, known.superseded.encode(), known.cut_short, found.tombstone


@pytest.mark.parametrize("stop", range(1, 40))
def test_a_pass_that_was_cut_off_anywhere_finds_the_same(stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.journal.clean.key_compaction.RECORDS_PER_STEP", 2)
    keyed = example()
    middle = keyed.writer.journal.ledger.topics[keyed.topic].end
    whole, cut = TopicKeys(0, 0), TopicKeys(0, 0)
    first = passed(keyed, whole)
    assert told(whole, first) == told(cut, passed(keyed, cut, stop))
    again(keyed)
    second = passed(keyed, whole)
    assert whole.surveyed > middle
    assert told(whole, second) == told(cut, passed(keyed, cut, stop))
    assert len(whole.superseded) > 20


def test_what_it_notes_grows_with_the_keys_and_not_with_the_records() -> None:
    keyed = example()
    journal = keyed.writer.journal
    found = KeyPass(journal.history, keyed.topic, TopicKeys(0, 0), (0, 60), 0, 1000)
    note = found.note()
    while not found.done:
        before, note = note, found.note()
        found.step()
    assert len(before.names) == 13 * 16
    assert len(before.offsets) == 13 * 8


def test_below_what_is_superseded_it_is_clean() -> None:
    known = TopicKeys(10, 0)
    assert known.clean == 10
    known.superseded.add(4)
    assert known.clean == 4
