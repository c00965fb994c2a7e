"""Checkpoints: a chain of files that gives the ledger back, or says which of them is damaged."""

from __future__ import annotations

from itertools import product

import pytest

from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format import checkpoint
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.checkpoint import name_of
from runnel.journal.format.entry import PartKind, state_part
from runnel.journal.format.ledger import CursorState, Ledger, TopicState, cursor_part, topic_part
from runnel.testing import MemoryStorage
from tests.journal.format.test_ledger import seen
from tests.journal.written_journal import put


def example() -> Ledger:
    ledger = Ledger()
    ledger.apply([topic_part(TopicState(1, "orders", 1, {})), cursor_part(CursorState("a", "orders", 1, 7))], 5)
    return ledger


def chain() -> tuple[MemoryStorage, Ledger]:
    """A full checkpoint 3, and 5 after it: a topic more, one less."""
    storage, ledger = MemoryStorage(), example()
    checkpoint.write(storage, 3, 0, ledger)
    ledger.checked()
    ledger.apply([topic_part(TopicState(2, "bills", 2, {})), state_part(PartKind.TOPIC_DELETED, topic=1)], 6)
    checkpoint.write(storage, 5, 3, ledger)
    return storage, ledger


def test_a_chain_gives_the_ledger_back() -> None:
    storage, ledger = chain()
    again = Ledger()
    checkpoint.load(storage, 3, 0, again)
    assert sorted(again.topics) == [1]
    checkpoint.load(storage, 5, 3, again)
    assert seen(again) == seen(ledger)
    assert sorted(again.topics) == [2]


def test_what_was_read_from_a_checkpoint_has_not_changed_since() -> None:
    storage, _ = chain()
    again = Ledger()
    checkpoint.load(storage, 3, 0, again)
    assert len(again.changes(everything=False)) == 1  # the numbers, which are always there


def test_it_tells_its_size() -> None:
    storage, ledger = MemoryStorage(), example()
    size = checkpoint.write(storage, 3, 0, ledger)
    assert size == len(read_whole(storage, name_of(3))) > 36
    assert storage.names() == ["000000000003.ckpt"]


def test_a_link_holds_only_what_changed() -> None:
    storage, ledger = MemoryStorage(), Ledger()
    ledger.apply([topic_part(TopicState(topic, f"topic{topic}", 1, {})) for topic in range(1, 1001)], 5)
    full = checkpoint.write(storage, 3, 0, ledger)
    ledger.checked()
    ledger.apply([cursor_part(CursorState("a", "topic1", 1, 7))], 6)
    assert checkpoint.write(storage, 5, 3, ledger) < full / 50


def test_a_missing_one_is_damage() -> None:
    with pytest.raises(JournalDamaged, match="missing"):
        checkpoint.load(MemoryStorage(), 3, 0, Ledger())


@pytest.mark.parametrize(("number", "before"), [(3, 2), (5, 0), (4, 3)])
def test_one_that_stands_elsewhere_in_the_chain_is_damage(number: int, before: int) -> None:
    storage, _ = chain()
    put(storage, name_of(4), read_whole(storage, name_of(5)))
    with pytest.raises(JournalDamaged, match="it is checkpoint"):
        checkpoint.load(storage, number, before, Ledger())


WHOLE = read_whole(chain()[0], name_of(3))


def harmed(data: bytes, ledger: Ledger) -> type[Exception] | None:
    """The error that these bytes are refused with; None: they are taken as whole."""
    storage = MemoryStorage()
    put(storage, name_of(3), data)
    try:
        checkpoint.load(storage, 3, 0, ledger)
    except (JournalDamaged, FormatUnknown) as error:
        return type(error)
    return None


def test_one_changed_bit_anywhere_is_noticed_and_leaves_the_ledger_as_it_was() -> None:
    ledger = example()
    before = repr(seen(ledger))
    for at, bit in product(range(len(WHOLE)), range(8)):
        data = WHOLE[:at] + bytes([WHOLE[at] ^ 1 << bit]) + WHOLE[at + 1 :]
        expected = FormatUnknown if 8 <= at < 12 else JournalDamaged
        assert harmed(data, ledger) is expected, f"bit {bit} of byte {at}"
        assert repr(seen(ledger)) == before, f"bit {bit} of byte {at}"


def test_a_checkpoint_cut_anywhere_is_damage() -> None:
    for kept in range(len(WHOLE)):
        assert harmed(WHOLE[:kept], Ledger()) is JournalDamaged, f"cut at {kept}"


def test_bytes_behind_the_end_are_damage() -> None:
    storage = MemoryStorage()
    put(storage, name_of(3), WHOLE + b"\0")
    with pytest.raises(JournalDamaged, match="after its end"):
        checkpoint.load(storage, 3, 0, Ledger())


def test_pieces_that_change_places_are_damage() -> None:
    pieces = []
    at = 36
    while at < len(WHOLE):
        end = at + 8 + int.from_bytes(WHOLE[at : at + 4], "little")
        pieces.append(WHOLE[at:end])
        at = end
    assert len(pieces) == 3
    storage = MemoryStorage()
    put(storage, name_of(3), WHOLE[:36] + pieces[0] + pieces[2] + pieces[1])
    with pytest.raises(JournalDamaged, match="crc"):
        checkpoint.load(storage, 3, 0, Ledger())
