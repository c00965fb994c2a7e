"""The check of a record batch under fire: a door lets in what can be read, and nothing else."""

from runnel.core.batch_format import check_batch, pack, unpack
from runnel.core.checksum import crc_of
from runnel.core.errors import BadBatch
from runnel.core.record import Meta
from tests.carried import columns_of

SEEDS = (
    pack([b"one", b"two"]),
    pack(
        [b"v"] * 3,
        columns_of([Meta(key=b"k"), None, Meta(headers={"a": "b"}, priority=3)]),
        producer=7,
        producer_sequence=1,
    ),
    pack([b"x" * 100] * 20, compression="zstd", times=[5] * 20),
    pack([b"x" * 100] * 20, compression="lz4", deltas=range(0, 40, 2)),
)


def one_input(data: bytes) -> None:
    """As it is, and with a checksum that fits: no fuzzer finds one by itself."""
    for batch in (data, crc_of(data[4:]).to_bytes(4, "little") + data[4:]):
        try:
            header = check_batch(batch)
        except BadBatch:
            continue
        records = unpack(batch)
        assert len(records) == header.count == len(records.values)
        assert header.size == len(batch)
        assert records.last_delta >= header.count - 1
        assert all(index < header.count for index in records.metas)
