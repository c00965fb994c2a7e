"""Where topics begin and end, of a broker in this process. What all backends tell alike: contract/test_bounds.py."""

from pathlib import Path
from shutil import copytree, ignore_patterns

import runnel


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
