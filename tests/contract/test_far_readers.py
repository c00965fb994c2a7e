"""What leaves for far readers is what came, record by record: from memory and from disk, whole and cut anywhere."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel.broker.packed_publisher import LocalPackedPublisher
from runnel.broker.read.reader import LocalReader
from runnel.core.backend import SettleVerb
from runnel.core.batch import Slice
from runnel.core.batch_format import pack, unpack
from runnel.core.options import SubscribeOptions
from runnel.core.record import Meta
from runnel.wire.wire_batch import wire_batches
from tests.carried import columns_of
from tests.nightly import examples

Told = tuple[str, int, bytes, bytes | None, dict[str, str]]

METAS = st.one_of(
    st.none(),
    st.builds(Meta, st.one_of(st.none(), st.binary(max_size=3)), st.dictionaries(st.sampled_from("ab"), st.just("x"))),
)
RECORDS = st.lists(st.tuples(st.binary(max_size=8), METAS), min_size=1, max_size=12)
BATCHES = st.lists(
    st.tuples(st.sampled_from(["s", "t"]), RECORDS, st.sampled_from(["packed", "packed and compressed", "here"])),
    min_size=1,
    max_size=12,
)


def told(part: Slice) -> list[Told]:
    """The records of a slice, as they are sent."""
    found: list[Told] = []
    for piece in wire_batches(part, None):
        batch = unpack(piece.packed)
        for at, value in enumerate(batch.values):
            meta = batch.metas.get(at) or Meta()
            found.append((piece.topic, piece.offset + at, value, meta.key, dict(meta.headers)))
    return found


async def fill(broker: runnel.Broker, batches: list[Any]) -> list[Told]:
    """Publish all of it, each batch in its own way; what everybody should see."""
    intake, ends = LocalPackedPublisher(broker.backend), {"s": 0, "t": 0}
    expected: list[Told] = []
    for topic, records, how in batches:
        if how == "here":
            for value, meta in records:
                meta = meta or Meta()
                await broker.publish(topic, value, key=meta.key, headers=dict(meta.headers))
        else:
            landed = asyncio.get_running_loop().create_future()
            compression = "zstd" if how != "packed" else None
            metas = [meta for _, meta in records]
            data = pack(
                [value for value, _ in records], columns_of(metas if any(metas) else None), compression=compression
            )
            intake.publish(topic, data, None, landed.set_result)
            assert not isinstance(await landed, Exception)
        for value, meta in records:
            meta = meta or Meta()
            expected.append((topic, ends[topic], value, meta.key, dict(meta.headers)))
            ends[topic] += 1
    return expected


def opened(broker: runnel.Broker, pattern: str) -> LocalReader:
    reader: LocalReader = broker.backend.reader(pattern, SubscribeOptions(start="earliest"), lambda: None, far=True)
    reader.enter()
    return reader


async def drained(reader: LocalReader, count: int, limit: int) -> list[Told]:
    found: list[Told] = []
    while len(found) < count:
        taken = reader.take(limit)
        if taken is None:
            await asyncio.sleep(0)
            continue
        assert taken.missed is None
        found += [one for part in taken.slices for one in told(part)]
    return found


@examples(20, 60)
@given(BATCHES, st.sampled_from([1, 64 * 1024 * 1024]), st.integers(1, 9), st.integers(1, 40))
def test_every_reader_gets_every_record_with_its_own_key_and_headers(
    batches: list[Any], tail_bytes: int, limit: int, prefetch: int
) -> None:
    async def run(folder: str) -> None:
        async with runnel.open(Path(folder), tail_bytes=tail_bytes, segment_bytes=1 << 20, share=False) as broker:
            expected = await fill(broker, batches)
            of_topic = [one for one in expected if one[0] == "t"]
            assert await drained(opened(broker, "*"), len(expected), limit) == expected
            if not of_topic:
                return
            assert await drained(opened(broker, "t"), len(of_topic), limit) == of_topic
            options = SubscribeOptions(group="g", prefetch=prefetch, start="earliest")
            member = broker.backend.member("t", options, lambda: None)
            member.enter()
            seen: list[Told] = []
            while len(seen) < len(of_topic):
                if not member.inbox:
                    await asyncio.sleep(0)
                    continue
                lease = member.inbox.popleft()
                for _, part in member.parts(lease):
                    seen += told(part)
                member.settle(lease, SettleVerb.ACK, lease.first, lease.end)
            assert sorted(seen, key=lambda one: one[1]) == of_topic

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        asyncio.run(run(folder))
