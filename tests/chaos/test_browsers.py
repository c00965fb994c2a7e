"""Many browsers at once, and browsers that come and go. `tests.chaos.browsers` does it with ten thousand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.browser import Browser, Unchunked
from tests.chaos.browsers import at_once, storm
from tests.nightly import nightly_beyond


async def test_many_streams_at_once_take_little_memory_and_get_everything(tmp_path: Path) -> None:
    figures = await at_once(tmp_path / "data", 200, publishes=20, together=10, looks=3)
    assert not figures.broken, f"{figures}\n{figures.broken}"
    assert figures.connections == 200


@pytest.mark.parametrize(("browsers", "disconnects", "restarts"), nightly_beyond(1, [(20, 200, 2), (40, 500, 3)]))
async def test_browsers_that_lose_their_streams_miss_nothing_and_see_nothing_twice(
    tmp_path: Path, browsers: int, disconnects: int, restarts: int
) -> None:
    figures = await storm(tmp_path / "data", browsers, disconnects, restarts, seed=7)
    assert not figures.broken, f"{figures}\n{figures.broken[:10]}"
    assert figures.disconnects >= disconnects
    assert figures.kills + figures.stops == restarts
    assert sum(figures.ends.values()) >= figures.published > 0
    assert sum(browser.resumed for browser in figures.browsers) > disconnects // 5


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(1, 20))
def test_a_body_in_chunks_is_put_together_however_it_is_cut(chunks: list[bytes], step: int) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
    body = Unchunked()
    assert b"".join(body.feed(data[at : at + step]) for at in range(0, len(data), step)) == b"".join(chunks)


def test_a_judge_sees_gaps_repeats_and_disorder() -> None:
    def heard(*records: tuple[str, int, int]) -> list[str]:
        browser = Browser("pattern=>")
        for topic, offset, sequence in records:
            data = b'{"topic":"%b","offset":%d,"sequence":%d}' % (topic.encode(), offset, sequence)
            browser._event(b"id: x\ndata: " + data)
        return [fault.partition(":")[0] for fault in browser.faults]

    assert heard(("a", 0, 0), ("b", 0, 1), ("a", 1, 2)) == []
    assert heard(("a", 0, 0), ("a", 2, 5)) == ["silent gap"]
    assert heard(("a", 0, 0), ("a", 0, 1)) == ["repeat"]
    assert heard(("a", 0, 3), ("b", 0, 2)) == ["out of order"]


def test_an_event_that_was_cut_off_does_not_count() -> None:
    browser = Browser("topic=a")
    browser._event(b"retry: 1000")
    browser._event(b": ")
    assert (browser.last_id, browser.events) == ("", 0)
    browser._event(b"id: here")
    browser._event(b'event: ready\nid: there\ndata: {"resumed":true,"topics":["a"]}')
    assert (browser.last_id, browser.resumed, browser.events) == ("there", 1, 0)
