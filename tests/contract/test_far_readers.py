"""What leaves for far readers is what came, record by record: from memory and from disk, whole and cut anywhere."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel.broker.remote.cursor import RemoteCursor, WireBatch, open_remote_cursor
from runnel.broker.remote.member import ACK, LeaseGrant, open_remote_member
from runnel.broker.remote.publisher import RemotePublisher
from runnel.core.batch_format import pack, unpack
from runnel.core.record import Meta
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


def told(piece: WireBatch) -> list[Told]:
    batch = unpack(piece.packed)
    return [
        (
            piece.topic,
            piece.offset + at,
            value,
            (batch.metas.get(at) or Meta()).key,
            dict((batch.metas.get(at) or Meta()).headers),
        )
        for at, value in enumerate(batch.values)
    ]


async def fill(broker: runnel.Broker, batches: list[Any]) -> list[Told]:
    """Publish all of it, each batch in its own way; what everybody should see."""
    intake, ends = RemotePublisher(broker), {"s": 0, "t": 0}
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
            data = pack([value for value, _ in records], metas if any(metas) else None, compression=compression)
            intake.publish(topic, data, None, landed.set_result)
            assert not isinstance(await landed, Exception)
        for value, meta in records:
            meta = meta or Meta()
            expected.append((topic, ends[topic], value, meta.key, dict(meta.headers)))
            ends[topic] += 1
    return expected


async def drained(feed: RemoteCursor, count: int, limit: int) -> list[Told]:
    found: list[Told] = []
    while len(found) < count:
        taking = feed.take(limit)
        if taking is None:
            await asyncio.sleep(0)
            continue
        assert taking.gap is None
        found += [one for piece in taking.pieces for one in told(piece)]
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
            everything = open_remote_cursor(broker, "*", ready=lambda: None, start="earliest")
            everything.enter()
            assert await drained(everything, len(expected), limit) == expected
            if not of_topic:
                return
            feed = open_remote_cursor(broker, "t", ready=lambda: None, start="earliest")
            feed.enter()
            assert await drained(feed, len(of_topic), limit) == of_topic
            grants: list[LeaseGrant] = []
            member = open_remote_member(
                broker,
                "t",
                "g",
                granted=grants.append,
                lapsed=lambda _: None,
                over=lambda _: None,
                prefetch=prefetch,
                start="earliest",
            )
            member.enter()
            seen: list[Told] = []
            while len(seen) < len(of_topic):
                if not grants:
                    await asyncio.sleep(0)
                    continue
                grant = grants.pop(0)
                for place, piece in grant.pieces:
                    records = told(piece)
                    seen += records
                    member.settle(grant.lease, ACK, place, place + len(records), None, None)
            assert sorted(seen, key=lambda one: one[1]) == of_topic

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        asyncio.run(run(folder))
