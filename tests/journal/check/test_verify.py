"""Verifying a folder: whole is whole, beside an owner too, and every flipped bit is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import runnel
from runnel.core.errors import FormatUnknown
from runnel.core.record import Gap, Record
from runnel.journal.check import scan
from runnel.journal.check.verify import verify
from runnel.journal.format import atomic_file
from runnel.journal.read.inspection import Inspection, NoJournal
from runnel.journal.storage import Storage
from tests.journal.folders import Owner, fill, flip, other_owner, publish_numbered, segments_of, snapshot_of


def test_a_whole_folder_is_whole_and_left_as_it_was(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    before = snapshot_of(tmp_path)
    told: list[tuple[int, int]] = []
    found = verify(tmp_path, lambda done, total: told.append((done, total)))
    assert found.whole
    assert (found.segments, found.records) == (5, 180)
    assert found.bytes == sum(len(data) for name, data in before.items() if name != "DURABLE")
    assert told[-1] == (found.bytes, found.bytes)
    assert snapshot_of(tmp_path) == before


@pytest.mark.parametrize("name", ["000000000001.seg", "000000000001.idx", "000000000002.ckpt", "MANIFEST"])
def test_one_bit_flipped_in_any_byte_is_found(tmp_path: Path, name: str) -> None:
    fill(tmp_path, batches=2)
    data = (tmp_path / name).read_bytes()
    for position in range(len(data)):
        flip(tmp_path / name, position, 1 << position % 8)
        try:
            found = verify(tmp_path)
        except FormatUnknown:
            assert name == "MANIFEST"  # its version may be a later runnel's: that is left alone
            assert 8 <= position < 12
        else:
            assert not found.whole, position
        (tmp_path / name).write_bytes(data)


def test_it_works_while_another_process_writes(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        for batches in (1, 10, 60):
            owner.tell("publish", batches)
            found = verify(tmp_path)
            assert found.whole, found
        assert found.records == 213
        assert found.bytes < 40_000  # not what is only reserved
        owner.tell("roll")
        assert verify(tmp_path).whole
        flip(segments_of(tmp_path)[1], 300)
        assert not verify(tmp_path).whole


def test_what_an_owner_closes_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    owner = Owner(tmp_path)  # nothing but state: closing removes the segment
    owner.topic("t")
    closed = False

    def close(done: int, total: int) -> None:
        nonlocal closed
        if not closed:
            owner.__exit__(None, None, None)
            closed = True

    assert verify(tmp_path, close).whole
    assert closed


def test_a_torn_tail_is_reported_and_is_no_damage(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    publish_numbered(owner, 0, 1)
    end = owner.journal.history.sources[-1].written
    owner.crash()
    with segments_of(tmp_path)[-1].open("r+b") as file:
        file.seek(end)
        file.write(b"half an entry")
    found = verify(tmp_path)
    assert found.whole
    assert found.torn is not None
    assert (found.torn.position, found.torn.bytes) == (end, 13)


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoJournal):
        verify(tmp_path)


def test_what_an_owner_writes_while_its_last_segment_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path)
    publish_numbered(owner, 0, 1)
    last = owner.journal.manifest.segments[-1].name

    def read_whole(storage: Storage, name: str) -> bytes:
        data = atomic_file.read_whole(storage, name)
        if name == last:
            publish_numbered(owner, 1, 2)
        return data

    monkeypatch.setattr(scan, "read_whole", read_whole)
    assert verify(tmp_path).damages == []
    owner.crash()


async def test_a_transaction_of_which_one_topic_is_damaged_is_named(tmp_path: Path) -> None:
    async with runnel.open(tmp_path, share=False) as broker:
        await broker.publish("alone", b"before")
        async with broker.transaction() as tx:
            tx.publish("orders", b"the order")
            tx.publish("stock", b"one less")
            tx.mark("import", 7)
    segment = tmp_path / "000000000001.seg"
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"one less", b"one more"))
    found = verify(tmp_path)
    assert [(lost.topic, lost.first, lost.end) for lost in found.lost] == [("stock", 0, 1)]
    (note,) = found.notes
    assert "the records of 'orders' are still read and those of 'stock' are lost" in note
    assert "a transaction over them (marked 'import') is seen in part" in note
    with Inspection(tmp_path) as seen:
        (gap,) = seen.read("stock")
        assert isinstance(gap, Gap)
        assert gap.reason.endswith("records of 1 more topics, so a transaction may be seen in part")
        assert [record.value for record in seen.read("orders") if isinstance(record, Record)] == [b"the order"]
