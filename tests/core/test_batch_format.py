"""A batch comes back as it was packed; bytes that are anything else are refused, always with the same error."""

import math
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from runnel.core import batch_format, compression
from runnel.core.batch_format import (
    DELTAS,
    HEADER_SIZE,
    JSON,
    MAX_BATCH_RECORDS,
    MAX_DELTA,
    MAX_RAW,
    MSGPACK,
    TIMES,
    VALUES,
    BatchHeader,
    batch_body,
    check_batch,
    last_offset_delta,
    pack,
    pack_body,
    pack_columns,
    read_batch_header,
    unpack,
    unpack_untrusted,
)
from runnel.core.checksum import crc_of
from runnel.core.columns import DUE, EXPIRES, HEADERS, KEYS, PRIORITIES, Columns
from runnel.core.errors import BadBatch, NotSupported, TooLarge
from runnel.core.record import NO_HEADERS, Meta
from tests.carried import columns_of

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# -- what is tried ----------------------------------------------------------------------------------------------

seconds = st.none() | st.floats(min_value=-1e300, allow_nan=False)
header_names = st.text("abcxyzABC019-_.~!#$%&'*+^`|", min_size=1, max_size=12)  # never a traceparent
header_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=20)
metas = st.builds(
    Meta,
    st.none() | st.binary(max_size=20),
    st.just(NO_HEADERS) | st.dictionaries(header_names, header_values, max_size=4).map(MappingProxyType),
    seconds,
    seconds,
    st.integers(0, 9),
)
rising = st.lists(st.integers(1, 1000), max_size=30).map(lambda steps: list(accumulate(steps, initial=0)))
kinds = st.sampled_from([None, "zstd", "lz4"])

SMALL = pack([b"one", b"two"], columns_of([Meta(b"k", {"n": "v"}, 1.5, None, 3), None]), times=[5, None], deltas=[0, 4])
BATCHES = {
    "plain": pack([b"one", b"", b"three"]),
    "all columns": SMALL,
    "zstd": pack([b"order" * 20] * 3, compression="zstd"),
    "lz4": pack([b"order" * 20] * 3, compression="lz4"),
}
every_batch = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)


def sealed(after_crc: bytes) -> bytes:
    """A batch whose crc is right, whatever else it says."""
    return crc_of(after_crc).to_bytes(4, "little") + after_crc


def forged(batch: bytes, at: int, form: str, lie: int) -> bytes:
    """The batch with a lie at a place of its header, and a crc that fits."""
    lying = bytearray(batch)
    struct.pack_into(f"<{form}", lying, at, lie)
    return sealed(bytes(lying[4:]))


def with_body(body: bytes, columns: int = VALUES, count: int = 2, flags: int = 0, raw: int | None = None) -> bytes:
    """A batch with this very body, whether it makes sense or not."""
    raw = len(body) if raw is None else raw
    return sealed(struct.pack("<BBHIIIQQIB7x", 1, flags, columns, count, len(body), raw, 0, 0, 0, 0) + body)


def with_columns(bits: int, *columns: Any, count: int = 2) -> bytes:
    return with_body(msgspec.msgpack.encode(columns), bits, count)


# -- there and back ---------------------------------------------------------------------------------------------


@given(values=st.lists(st.binary(max_size=300), min_size=1, max_size=40), kind=kinds)
def test_values_come_back(values: list[bytes], kind: str | None) -> None:
    batch = pack(values, compression=kind)
    unpacked = unpack(batch)
    assert unpacked.values == tuple(values)
    assert (unpacked.metas, unpacked.times, unpacked.deltas) == ({}, None, None)
    assert len(unpacked) == check_batch(batch).count == len(values)
    assert unpacked.last_delta == last_offset_delta(batch) == len(values) - 1


@given(records=st.lists(st.tuples(st.binary(max_size=50), st.none() | metas), min_size=1, max_size=20), kind=kinds)
def test_what_records_carry_comes_back(records: list[tuple[bytes, Meta | None]], kind: str | None) -> None:
    values, carried = [one for one, _ in records], [meta for _, meta in records]
    batch = pack(values, columns_of(carried), compression=kind)
    assert check_batch(batch).count == len(values)
    unpacked = unpack(batch)
    assert unpacked.values == tuple(values)
    assert unpacked.metas == {at: meta for at, meta in enumerate(carried) if meta is not None and meta != Meta()}


@given(deltas=rising, data=st.data(), kind=kinds)
def test_times_and_holes_come_back(deltas: list[int], data: st.DataObject, kind: str | None) -> None:
    times = data.draw(
        st.lists(st.none() | st.integers(0, 2**55), min_size=len(deltas), max_size=len(deltas)), label="times"
    )
    batch = pack([b"x"] * len(deltas), times=times, deltas=deltas, compression=kind)
    unpacked = unpack(batch)
    assert unpacked.deltas == tuple(deltas)
    assert unpacked.times == (None if times == [None] * len(times) else tuple(times))
    assert unpacked.last_delta == last_offset_delta(batch) == deltas[-1]
    assert unpacked.metas == {}


def test_the_header_says_what_was_given() -> None:
    batch = pack(
        [b"{}"] * 3,
        content_type=JSON,
        producer=2**64 - 1,
        producer_sequence=2**64 - 2,
        schema=2**32 - 1,
        deltas=[0, 1, MAX_DELTA],
    )
    header = read_batch_header(batch)
    assert header == unpack(batch).header == check_batch(batch)
    assert header == BatchHeader(
        crc=crc_of(batch[4:]),
        version=1,
        flags=0,
        columns=VALUES | DELTAS,
        count=3,
        body_length=len(batch) - HEADER_SIZE,
        raw_length=len(batch) - HEADER_SIZE,
        producer=2**64 - 1,
        producer_sequence=2**64 - 2,
        schema=2**32 - 1,
        content_type=JSON,
    )
    assert (header.compression, header.size) == (None, len(batch))


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_a_compressed_batch_says_how_and_how_large_it_was(kind: str) -> None:
    values = [b"order" * 100] * 10
    small, large = read_batch_header(pack(values, compression=kind)), read_batch_header(pack(values))
    assert small.compression == kind
    assert small.body_length < large.body_length == large.raw_length == small.raw_length


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_a_body_that_does_not_shrink_is_stored_as_it_is(kind: str) -> None:
    assert pack([b"x"], compression=kind) == pack([b"x"])


def test_only_columns_with_something_in_them_are_stored() -> None:
    plain = pack([b"a", b"b"])
    assert pack([b"a", b"b"], columns_of([None, None])) == plain
    assert pack([b"a", b"b"], columns_of([Meta(), None]), times=[None, None]) == plain
    assert read_batch_header(pack([b"a", b"b"], columns_of([None, Meta(b"")]))).columns == VALUES | KEYS
    assert read_batch_header(pack([b"a"], columns_of([Meta(headers={"n": "v"})]))).columns == VALUES | HEADERS
    assert read_batch_header(pack([b"a"], columns_of([Meta(due=0.0)]))).columns == VALUES | DUE
    assert read_batch_header(pack([b"a"], columns_of([Meta(expires=math.inf)]))).columns == VALUES | EXPIRES
    assert read_batch_header(pack([b"a"], columns_of([Meta(priority=1)]))).columns == VALUES | PRIORITIES
    assert read_batch_header(pack([b"a"], times=[0])).columns == VALUES | TIMES


def test_headers_come_back_read_only() -> None:
    headers = unpack(pack([b"a"], columns_of([Meta(headers={"n": "v"})]))).metas[0].headers
    with pytest.raises(TypeError):
        headers["n"] = "w"  # type: ignore[index]


def test_metas_are_built_once() -> None:
    unpacked = unpack(SMALL)
    assert unpacked.metas is unpacked.metas


def test_a_batch_shows_itself_in_a_word() -> None:
    assert repr(unpack(SMALL)) == "<Unpacked batch of 2 records>"


@every_batch
def test_a_view_reads_like_the_bytes_under_it(batch: bytes) -> None:
    for view in (memoryview(batch), memoryview(bytearray(b"##" + batch))[2:]):
        assert read_batch_header(view) == read_batch_header(batch)
        assert check_batch(view) == check_batch(batch)
        assert unpack(view).values == unpack(batch).values
        assert last_offset_delta(view) == last_offset_delta(batch)


def test_any_sequence_can_be_packed() -> None:
    class Twice(Sequence[bytes]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: Any) -> Any:
            return [b"x", b"x"][at]

    assert pack(Twice(), deltas=range(2)) == pack((b"x", b"x"), deltas=[0, 1])


def test_nothing_is_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        pack([])


@pytest.mark.parametrize("column", ["times", "deltas"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_column_of_another_length_is_not_packed(column: str, length: int) -> None:
    columns: dict[str, Any] = {column: [None] * length}
    with pytest.raises(ValueError, match=f"2 values, and a column of {length}"):
        pack([b"a", b"b"], **columns)


def test_a_column_may_end_early_and_not_late() -> None:
    short = Columns({KEYS: [b"k"], HEADERS: [None], PRIORITIES: [3]})
    found = unpack(pack([b"a", b"b"], short))
    assert (found.keys, found.headers, found.priorities) == ((b"k", None), None, (3, 0))
    with pytest.raises(ValueError, match="2 values, and a column of 3"):
        pack([b"a", b"b"], Columns({KEYS: [b"k"] * 3}))


def test_what_could_not_be_read_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_format, "MAX_RAW", 1000)
    assert unpack(pack([b"x" * 990])).values == (b"x" * 990,)
    with pytest.raises(TooLarge):
        pack([b"x" * 1000])


# -- the bytes of version 1, for ever ---------------------------------------------------------------------------

PLAIN = """
    5b19fbe3 01 00 0100 03000000 10000000 10000000 0000000000000000 0000000000000000 00000000 00 00000000000000
    91 93 c4036f6e65 c400 c4057468726565
"""
FULL = """
    79f6212f 01 00 ff00 03000000 4d000000 4d000000 0000000000000080 0700000000000000 05000000 01 00000000000000
    98 93c40161c40162c40163
       93c4016bc0c400
       9382a16ea176a178a2c3bcc0c0
       93cf00060a24181e4000c000
       93cb3ff8000000000000c0c0
       93cb4004000000000000c0c0
       93090000
       930002cd012c
"""
ZSTD = """
    b16352e2 01 01 0100 03000000 1d000000 34010000 0000000000000000 0000000000000000 00000000 00 00000000000000
    28b52ffd6034009d0000489193c4646f726465720200c9345080319523
"""
LZ4 = """
    6dfa9851 01 02 0100 03000000 17000000 34010000 0000000000000000 0000000000000000 00000000 00 00000000000000
    9f9193c4646f7264657205004c0f6600b4506f72646572
"""


def test_a_plain_batch_has_the_bytes_it_always_had() -> None:
    assert pack([b"one", b"", b"three"]) == bytes.fromhex(PLAIN)
    assert unpack(bytes.fromhex(PLAIN)).values == (b"one", b"", b"three")


def test_a_batch_with_every_column_has_the_bytes_it_always_had() -> None:
    carried = [Meta(b"k", MappingProxyType({"n": "v", "x": "ü"}), 1.5, 2.5, 9), None, Meta(b"")]
    times, deltas = (1_700_000_000_000_000, None, 0), (0, 2, 300)
    batch = pack(
        [b"a", b"b", b"c"],
        columns_of(carried),
        content_type=1,
        producer=2**63,
        producer_sequence=7,
        schema=5,
        deltas=deltas,
        times=times,
    )
    assert batch == bytes.fromhex(FULL)
    unpacked = unpack(bytes.fromhex(FULL))
    assert unpacked.values == (b"a", b"b", b"c")
    assert unpacked.metas == {0: carried[0], 2: carried[2]}
    assert (unpacked.times, unpacked.deltas) == (times, deltas)
    header = unpacked.header
    assert (header.producer, header.producer_sequence, header.schema, header.content_type) == (2**63, 7, 5, 1)


@pytest.mark.parametrize("batch", [ZSTD, LZ4], ids=["zstd", "lz4"])
def test_a_compressed_batch_of_old_is_still_read(batch: str) -> None:
    assert unpack(bytes.fromhex(batch)).values == (b"order" * 20,) * 3


def test_the_numbers_of_columns_and_content_types_are_settled() -> None:
    assert [VALUES, KEYS, HEADERS, TIMES, DUE, EXPIRES, PRIORITIES, DELTAS] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert [batch_format.BYTES, JSON, MSGPACK] == [0, 1, 2]


# -- damage -----------------------------------------------------------------------------------------------------


@every_batch
def test_every_flipped_bit_is_detected(batch: bytes) -> None:
    for bit in range(8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBatch):
            unpack(bytes(flipped))


@every_batch
def test_every_truncation_is_detected(batch: bytes) -> None:
    for kept in range(len(batch)):
        for read in (read_batch_header, unpack, check_batch, last_offset_delta):
            with pytest.raises(BadBatch):
                read(batch[:kept])


@every_batch
def test_bytes_behind_the_end_are_detected(batch: bytes) -> None:
    for more in (b"\0", batch):
        with pytest.raises(BadBatch, match="as its header says"):
            read_batch_header(batch + more)


def test_the_crc_is_skipped_on_request_and_nothing_else() -> None:
    wrong = b"\0\0\0\0" + BATCHES["plain"][4:]
    with pytest.raises(BadBatch, match="checksum"):
        unpack(wrong)
    assert unpack(wrong, verify=False).values == (b"one", b"", b"three")
    with pytest.raises(BadBatch, match="count"):
        unpack(forged(wrong, 8, "I", 2), verify=False)


# -- lies with a crc that fits ----------------------------------------------------------------------------------


LIES = [
    (4, "B", 0, "version is 0"),
    (4, "B", 2, "version is 2"),
    (5, "B", 3, "reserved"),
    (5, "B", 4, "reserved"),
    (5, "B", 0x80, "reserved"),
    *((at, "B", 1, "reserved") for at in range(41, 48)),
    (6, "H", 0, "columns"),
    (6, "H", 2, "columns"),
    (6, "H", 0x101, "columns"),
    (6, "H", 0x8001, "columns"),
    (8, "I", 0, "count"),
    (8, "I", 1, "count"),
    (8, "I", 4, "count"),
    (8, "I", 2**31, "count"),
    (8, "I", 2**32 - 1, "count"),
    (12, "I", 0, "as its header says"),
    (12, "I", 2**32 - 1, "as its header says"),
    (16, "I", 0, "two lengths|count"),
    (16, "I", MAX_RAW, "two lengths|claims|cannot hold"),
    (16, "I", MAX_RAW + 1, "raw length"),
    (16, "I", 2**32 - 1, "raw length"),
    (40, "B", 3, "content type"),
    (40, "B", 255, "content type"),
]


@every_batch
def test_a_lie_in_the_header_is_refused(batch: bytes) -> None:
    for at, form, lie, why in LIES:
        refused = ""
        try:
            check_batch(forged(batch, at, form, lie))
        except BadBatch as error:
            refused = str(error)
        assert re.search(why, refused), f"{lie} at {at}: {refused or 'taken'}"


@every_batch
def test_a_count_or_a_length_that_is_off_by_one_is_refused(batch: bytes) -> None:
    for at in (8, 12, 16):
        (true,) = struct.unpack_from("<I", batch, at)
        for lie in (true - 1, true + 1):
            with pytest.raises(BadBatch):
                unpack(forged(batch, at, "I", lie))


@every_batch
def test_columns_that_the_body_has_not_are_refused(batch: bytes) -> None:
    (true,) = struct.unpack_from("<H", batch, 6)
    for lie in range(256):
        if lie.bit_count() != true.bit_count():
            with pytest.raises(BadBatch):
                unpack(forged(batch, 6, "H", lie))


TWO = (b"a", b"b")


@pytest.mark.parametrize(
    "batch",
    [
        with_columns(VALUES, ["a", b"b"]),
        with_columns(VALUES, [1, b"b"]),
        with_columns(VALUES, [None, b"b"]),
        with_columns(VALUES, [[b"a"], b"b"]),
        with_columns(VALUES, {"a": 1, "b": 2}),
        with_columns(VALUES, b"ab"),
        with_columns(VALUES, None),
        with_columns(VALUES),
        with_columns(VALUES, [b"a"]),
        with_columns(VALUES, [b"a", b"b", b"c"]),
        with_columns(VALUES, TWO, TWO),
        with_columns(VALUES | KEYS, TWO),
        with_columns(VALUES | KEYS, TWO, ["a", None]),
        with_columns(VALUES | KEYS, TWO, [b"a"]),
        with_columns(VALUES | KEYS, TWO, []),
        with_columns(VALUES | HEADERS, TWO, [{"n": 1}, None]),
        with_columns(VALUES | HEADERS, TWO, [{b"n": "v"}, None]),
        with_columns(VALUES | HEADERS, TWO, [["n", "v"], None]),
        with_columns(VALUES | HEADERS, TWO, [{"n": {"n": "v"}}, None]),
        with_columns(VALUES | HEADERS, TWO, [{}, {}, {}]),
        with_columns(VALUES | TIMES, TWO, [-1, None]),
        with_columns(VALUES | TIMES, TWO, [1.5, None]),
        with_columns(VALUES | TIMES, TWO, [253_402_300_800_000_000, None]),
        with_columns(VALUES | TIMES, TWO, [2**64 - 1, None]),
        with_columns(VALUES | TIMES, TWO, [True, None]),
        with_columns(VALUES | DUE, TWO, ["1", None]),
        with_columns(VALUES | DUE, TWO, [math.nan, None]),
        with_columns(VALUES | EXPIRES, TWO, [None, math.nan]),
        with_columns(VALUES | EXPIRES, TWO, [None, -math.inf]),
        with_columns(VALUES | EXPIRES, TWO, [None, True]),
        with_columns(VALUES | PRIORITIES, TWO, [0, 10]),
        with_columns(VALUES | PRIORITIES, TWO, [0, -1]),
        with_columns(VALUES | PRIORITIES, TWO, [0, None]),
        with_columns(VALUES | PRIORITIES, TWO, [0, False]),
        with_columns(VALUES | PRIORITIES, TWO, [0, 1.0000001]),
        with_columns(VALUES | DELTAS, TWO, [1, 2]),
        with_columns(VALUES | DELTAS, TWO, [0, 0]),
        with_columns(VALUES | DELTAS, TWO, [0, -1]),
        with_columns(VALUES | DELTAS, TWO, [0, None]),
        with_columns(VALUES | DELTAS, TWO, [0, MAX_DELTA + 1]),
        with_columns(VALUES | DELTAS, (b"a", b"b", b"c"), [0, 2, 2], count=3),
        with_columns(VALUES | DELTAS, (b"a", b"b", b"c"), [0, 2, 1], count=3),
    ],
)
def test_a_column_that_is_not_what_it_should_be_is_refused(batch: bytes) -> None:
    for read in (unpack, check_batch):
        with pytest.raises(BadBatch):
            read(batch)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x91",
        b"\xc1" * 8,
        msgspec.msgpack.encode(TWO),
        msgspec.msgpack.encode([TWO]) + b"\xc0",
        msgspec.msgpack.encode({"values": TWO}),
        b"\x91" * 100_000,
        b"\x81\xa0" * 100_000,
        b"\xdd\xff\xff\xff\xff" + bytes(8),
        b"\x91\xdd\xff\xff\xff\xff" + bytes(8),
        b"\x91\x92\xc6\xff\xff\xff\xff" + bytes(8),
        b"\x91\x92\xc4\x01a\xc7\x01\x05a",
        b"\x91\x92\xc4\x01a\xc4\x02b",
    ],
)
def test_a_body_that_is_no_array_of_columns_is_refused(body: bytes) -> None:
    with pytest.raises(BadBatch):
        unpack(with_body(body))


@pytest.mark.parametrize("headers", [b"\x92\x81\xa1\xff\xa1v\xc0", b"\x92\x81\xa1n\xa1\xff\xc0"])
def test_text_that_is_not_utf8_is_refused(headers: bytes) -> None:
    with pytest.raises(BadBatch):
        unpack(with_body(b"\x92\x92\xc4\x01a\xc4\x01b" + headers, VALUES | HEADERS))


def test_a_map_that_lies_about_its_size_is_refused() -> None:
    with pytest.raises(BadBatch):
        unpack(with_body(b"\x92\x92\xc4\x01a\xc4\x01b\x92\xdf\xff\xff\xff\xff\xc0", VALUES | HEADERS))


@pytest.mark.parametrize(
    "headers",
    [
        {"": "v"},
        {"a b": "v"},
        {"a:b": "v"},
        {"n\r\nforged": "v"},
        {"n": "v\r\nforged: v"},
        {"n": "v\n"},
        {"n": "\0"},
        {"traceparent": "00-0-0-0"},
        {"fine": "v", "traceparent": ""},
    ],
)
def test_a_header_that_could_not_be_published_does_not_pass_a_listener(headers: dict[str, str]) -> None:
    batch = with_columns(VALUES | HEADERS, TWO, [{"fine": "v", "traceparent": TRACE}, headers])
    with pytest.raises(BadBatch):
        check_batch(batch)
    assert unpack(batch).metas[1].headers == headers


def test_a_header_that_can_be_published_passes() -> None:
    batch = with_columns(VALUES | HEADERS, TWO, [{"x-y": "ü\t", "traceparent": TRACE}, {}])
    assert check_batch(batch).count == 2
    assert unpack(batch).metas.keys() == {0}


@pytest.mark.parametrize("raw", [1000, MAX_RAW])
@pytest.mark.parametrize("kind", [1, 2], ids=["zstd", "lz4"])
def test_a_bomb_is_refused(kind: int, raw: int) -> None:
    name = compression.COMPRESSIONS[kind - 1]
    bomb = compression.compress(name, bytes(4_000_000))
    with pytest.raises(BadBatch, match=f"{name}"):
        unpack(with_body(bomb, flags=kind, raw=raw))


def test_a_compressed_body_that_does_not_say_its_length_is_refused() -> None:
    body = msgspec.msgpack.encode([TWO])
    nameless = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    with pytest.raises(BadBatch, match="claims no length"):
        unpack(with_body(nameless, flags=1, raw=len(body)))


@given(
    batch=st.sampled_from(list(BATCHES.values())),
    at=st.integers(0, 200),
    lie=st.binary(min_size=1, max_size=8),
    cut=st.integers(0, 4),
)
def test_bytes_with_a_valid_crc_are_read_or_refused(batch: bytes, at: int, lie: bytes, cut: int) -> None:
    """Whatever is changed, with the lengths and the crc put right, no other error comes out."""
    at = 4 + at % (len(batch) - 4)
    lying = bytearray(batch[:at] + lie + batch[at + len(lie) + cut :])
    if len(lying) >= HEADER_SIZE:
        struct.pack_into("<I", lying, 12, len(lying) - HEADER_SIZE)
        if not lying[5]:
            struct.pack_into("<I", lying, 16, len(lying) - HEADER_SIZE)
    try:
        unpacked = unpack(sealed(bytes(lying[4:])))
        unpacked.metas  # noqa: B018
    except BadBatch:
        return
    assert len(unpacked.values) == unpacked.header.count
    assert unpacked.deltas is None or all(left < right for left, right in pairwise(unpacked.deltas))


@given(st.binary(max_size=200))
@example(bytes(HEADER_SIZE))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for read in (read_batch_header, unpack, check_batch, last_offset_delta):
        with pytest.raises(BadBatch):
            read(data)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bare install, without the extra for compression."""
    compression._library.cache_clear()
    for name in ("zstandard", "lz4", "lz4.block"):
        monkeypatch.setitem(sys.modules, name, None)
    yield
    compression._library.cache_clear()


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_a_batch_that_only_lacks_a_library_is_not_called_damaged(kind: str) -> None:
    with pytest.raises(NotSupported, match=r"runnel-mq\[compression\]"):
        unpack(BATCHES[kind])
    assert read_batch_header(BATCHES[kind]).compression == kind


# -- batches made of batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_a_body_that_is_encoded_already_is_packed_as_it_is(compression: str | None) -> None:
    batch = pack([b"x" * 200, b"y"], compression=compression, content_type=JSON, schema=7)
    header = read_batch_header(batch)
    body = bytes(batch_body(header, batch))
    assert len(body) == header.raw_length
    about = {"compression": compression, "content_type": JSON, "schema": 7}
    assert pack_body(header.columns, 2, body, **about) == batch  # type: ignore[arg-type]


def test_columns_that_were_unpacked_can_be_packed_again() -> None:
    metas = [Meta(b"k", {"a": "b"}, 1.0, 2.0, 3), None]
    batch = pack([b"x", b"y"], columns_of(metas), times=[5, None])
    one = unpack(batch)
    columns = (one.values, one.keys, one.headers, one.times, one.due, one.expires, one.priorities)
    assert pack_columns(columns) == batch
    assert pack_columns([one.values, None, None, None, None, None, None]) == pack([b"x", b"y"])


def test_a_body_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_format, "MAX_RAW", 10)
    with pytest.raises(TooLarge, match="MAX_RAW"):
        pack_body(1, 1, bytes(11))


def test_other_numbers_change_nothing_else() -> None:
    for how in (None, "zstd"):
        before = pack([b"x" * 100, b"y"], columns_of([None, Meta(key=b"k")]), compression=how, producer=7, schema=3)
        after = batch_format.with_producer_sequence(before, 2**64 - 1, 2**63)
        assert after == pack(
            [b"x" * 100, b"y"],
            columns_of([None, Meta(key=b"k")]),
            compression=how,
            producer=2**64 - 1,
            producer_sequence=2**63,
            schema=3,
        )
        assert unpack(after).header.producer_sequence == 2**63


def test_more_records_than_may_be_published_are_refused_before_the_body_is_looked_at() -> None:
    """A few bytes of zstd may become gigabytes of lists."""
    many = MAX_BATCH_RECORDS + 1
    data = pack_body(VALUES, many, bytes(2 * many), compression="zstd")  # zeros: no columns at all
    with pytest.raises(TooLarge) as refused:
        unpack_untrusted(data)
    assert (refused.value.limit_name, refused.value.size) == ("max_entry_records", many)
    with pytest.raises(BadBatch):
        unpack_untrusted(pack_body(VALUES, MAX_BATCH_RECORDS, bytes(2 * many), compression="zstd"))


def test_a_listener_refuses_a_record_with_too_many_headers() -> None:
    many = pack([b"a"], columns_of([Meta(None, {f"h{n}": "x" for n in range(257)})]))
    with pytest.raises(BadBatch, match="257 headers"):
        check_batch(many)
