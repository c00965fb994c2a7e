"""What was compressed comes back whole, and nothing comes back larger than it said it would be."""

import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import lz4.block  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from runnel.core import compression
from runnel.core.compression import COMPRESSIONS, check_compression, compress, decompress
from runnel.core.errors import BadBatch, InvalidOption, NotSupported

kinds = pytest.mark.parametrize("kind", COMPRESSIONS)

ROOM = 1 << 20
BOMB = bytes(64 * ROOM)


@kinds
@given(data=st.binary(max_size=5000))
def test_what_was_compressed_comes_back(kind: str, data: bytes) -> None:
    assert decompress(kind, compress(kind, data), len(data)) == data


@kinds
def test_what_repeats_becomes_smaller(kind: str) -> None:
    assert len(compress(kind, b"order" * 1000)) < 200


@kinds
def test_a_view_is_read_as_it_is(kind: str) -> None:
    data = b"order" * 100
    assert decompress(kind, memoryview(b"##" + compress(kind, data))[2:], len(data)) == data


@kinds
@pytest.mark.parametrize("claimed", [0, 1, 499, 501, 10_000, 2**40])
def test_a_length_that_is_not_the_true_one_is_refused(kind: str, claimed: int) -> None:
    with pytest.raises(BadBatch):
        decompress(kind, compress(kind, b"order" * 100), claimed)


@kinds
def test_every_truncation_is_refused(kind: str) -> None:
    data = b"order" * 10 + bytes(range(50))
    packed = compress(kind, data)
    for kept in range(len(packed)):
        with pytest.raises(BadBatch):
            decompress(kind, packed[:kept], len(data))


@kinds
def test_bytes_behind_the_end_are_refused(kind: str) -> None:
    packed = compress(kind, b"order" * 100)
    for more in (b"\0", packed):
        with pytest.raises(BadBatch):
            decompress(kind, packed + more, 500)


@kinds
@given(data=st.binary(max_size=200), size=st.integers(0, 2000))
def test_arbitrary_bytes_are_refused_or_have_the_size_that_was_asked(kind: str, data: bytes, size: int) -> None:
    try:
        raw = decompress(kind, data, size)
    except BadBatch:
        return
    assert len(raw) == size


@pytest.mark.parametrize(
    ("kind", "bomb"),
    [
        ("zstd", zstandard.ZstdCompressor().compress(BOMB)),
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(BOMB)),
        ("lz4", lz4.block.compress(BOMB, store_size=False)),
    ],
    ids=["zstd", "zstd that does not say its length", "lz4"],
)
def test_a_bomb_is_refused_before_room_is_made_for_it(kind: str, bomb: bytes) -> None:
    with pytest.raises(BadBatch):
        decompress(kind, bomb, 1000)  # whatever a library keeps, it has now
    tracemalloc.start()
    try:
        with pytest.raises(BadBatch):
            decompress(kind, bomb, 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < ROOM


def test_a_frame_that_does_not_say_its_length_is_refused() -> None:
    with pytest.raises(BadBatch, match="claims no length"):
        decompress("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(b"order"), 5)


@kinds
def test_threads_do_not_share_a_context(kind: str) -> None:
    texts = [bytes([number]) * 50_000 for number in range(64)]

    def both_ways(text: bytes) -> bytes:
        return decompress(kind, compress(kind, text), len(text))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(both_ways, texts)) == texts


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bare install, without the extra."""
    compression._library.cache_clear()
    for name in ("zstandard", "lz4", "lz4.block"):
        monkeypatch.setitem(sys.modules, name, None)
    yield
    compression._library.cache_clear()


@kinds
@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_library_is_named_with_the_way_to_get_it(kind: str) -> None:
    with pytest.raises(NotSupported, match=r"pip install 'runnel-mq\[compression\]'") as caught:
        compress(kind, b"x")
    assert caught.value.what == f"compression='{kind}'"
    with pytest.raises(NotSupported, match=r"pip install 'runnel-mq\[compression\]'"):
        decompress(kind, b"x", 1)


@kinds
def test_a_known_name_passes(kind: str) -> None:
    assert check_compression(kind) == kind


@pytest.mark.parametrize(("name", "near"), [("zst", "zstd"), ("zstandard", "zstd"), ("LZ4", "lz4"), ("lz4hc", "lz4")])
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InvalidOption, match=f"did you mean '{near}'"):
        check_compression(name)


@pytest.mark.parametrize("name", ["gzip", "", None, 4, b"zstd"])
def test_a_name_that_resembles_none_is_refused_all_the_same(name: object) -> None:
    with pytest.raises(InvalidOption, match=r"expected 'zstd' or 'lz4'$"):
        check_compression(name)


def test_an_unknown_kind_is_refused_in_both_directions() -> None:
    with pytest.raises(InvalidOption):
        compress("gzip", b"")
    with pytest.raises(InvalidOption):
        decompress("gzip", b"", 0)
