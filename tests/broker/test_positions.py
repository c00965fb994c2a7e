"""Where topics begin and end, of a broker in this process. What all backends tell alike: contract/test_bounds.py."""

from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from msgspec import UNSET

import runnel
from runnel.core.errors import HistoryUnavailable
from runnel.journal.format.index import WINDOW
from runnel.testing import MemoryHistory


async def test_what_was_never_given_weighs_nothing(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    async with runnel.open(before, fsync="os") as broker:
        await broker.topic("t").publish_many([bytes(100)] * 10)
        copytree(before, after, ignore=ignore_patterns("socket*"))  # as a crash would leave it
    async with runnel.open(after) as broker:
        (bounds,) = await broker.bounds("t")
        assert bounds.end > 10  # offsets go on higher up
        assert bounds.record_bytes > 99


async def test_topics_in_memory_of_a_durable_broker_say_so(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.topic("m", durable=False).publish(b"")
        await broker.publish("d", b"")
        assert [(one.topic, one.durable) for one in await broker.bounds()] == [("d", True), ("m", False)]


async def test_a_sequence_on_disk_is_found_behind_entries_of_any_size(tmp_path: Path) -> None:
    """Also where an entry is longer than a chunk, and no window begins with it."""
    sizes = [10, 1000, 5 * WINDOW, 10, 10, WINDOW, 6 * WINDOW, 100, 3 * WINDOW, 10] * 2
    names = ["ab"[number % 5 == 3] for number in range(len(sizes))]
    async with runnel.open(tmp_path, tail_bytes=1) as broker:
        for name, size in zip(names, sizes, strict=True):
            await broker.topic(name).publish_many([b"x" * size, b"y"])
        for sequence in range(2 * len(sizes) + 1):
            before = [names[one // 2] for one in range(sequence)]
            assert {one.topic: one.at for one in await broker.bounds(sequence=sequence)} == {
                "a": before.count("a"),
                "b": before.count("b"),
            }


async def test_a_sequence_in_a_source_of_history_is_found(tmp_path: Path) -> None:
    """So that a limited stream of Spark that begins in history is cut there, too."""
    source = MemoryHistory("a")
    options: dict[str, Any] = {"tail_bytes": 1, "fsync": "os", "share": False, "history": source}
    async with runnel.open(tmp_path, **options) as broker, broker.subscribe("a", start="earliest") as records:
        for number in range(40):
            await broker.topic("a", retention_count=10).publish(b"%d" % number)
            source.add([await anext(records)])
            await broker.topic("b", retention_count=30).publish(b"%d" % number)
        await broker.topic("a").trim(4)
        for sequence in range(82):
            a, b = -(-sequence // 2), sequence // 2
            found = await broker.bounds("*", sequence=sequence)
            assert [one.at for one in found] == [min(40, max(4, a)), min(40, max(10, b))]
            journal = await broker._backend.bounds(("*",), sequence=sequence, history=False)
            assert [one.at for one in journal] == [min(40, max(30, a)), min(40, max(10, b))]
        source.error = OSError("no route")
        with pytest.raises(HistoryUnavailable):
            await broker.bounds("*", sequence=10)
        assert [one.at for one in await broker._backend.bounds(("*",), sequence=10, history=False)] == [30, 10]


async def test_bounds_of_the_journal_say_what_left_it_and_why(tmp_path: Path) -> None:
    async with runnel.open(tmp_path, share=False) as broker:
        for number in range(9):
            await broker.topic("counted", retention_count=4).publish(b"%d" % number)
            await broker.topic("trimmed").publish(b"%d" % number)
            await broker.topic("memory", durable=False).publish(b"%d" % number)
        await broker.topic("trimmed").trim(3)
        for _ in range(2):  # at once, and when the journal has it
            found = {one.topic: one for one in await broker.backend.bounds((">",), history=False)}
            removed = found["counted"].removed
            assert removed is not UNSET
            assert max(end for _, end, _ in removed) == found["counted"].first == 5
            assert {reason for _, _, reason in removed} <= {"retention_count", "no longer kept"}
            assert found["trimmed"].removed == ((0, 3, "trimmed"),)
            assert found["memory"].removed is UNSET
            await broker.sync()
        assert all(one.removed is UNSET for one in await broker.bounds())
