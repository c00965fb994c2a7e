"""`runnel top`: rates, lag and drops; once, again and again, for people and for programs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time
from typing import Any

import msgspec
import pytest

import runnel as package
from runnel.cli.output import BOLD, PLAIN, RED
from runnel.cli.top import (
    BrokerRates,
    GroupRow,
    ReaderRow,
    Screen,
    TopicRow,
    cut,
    draw,
    heading,
    key_pressed,
    rates_between,
)
from runnel.core.statistics import (
    CursorStatistics,
    GroupStatistics,
    RelayStatistics,
    Statistics,
    SubscriberTotals,
    TopicStatistics,
)
from tests.cli.conftest import Command
from tests.patience import PATIENCE

TOPICS = tuple(TopicRow(f"t{number}", 10.0 - number, 1000.0, 5, 100, 1) for number in range(30))
GROUP = GroupRow("g", "t", 5.0, 7, 2, 0.0, 1, 3.0, 2, True)
READER = ReaderRow("anonymous", "t", 100.0, 4.0, 44, 9)
VIEW = BrokerRates(1.0, 1234.0, 2048.0, 9999.0, 4.0, 44, 3, TOPICS, (GROUP,), (READER,))


def test_one_look_tells_topics_groups_and_subscribers(runnel: Command, server: str, topic: str) -> None:
    with package.blocking.open(server) as broker:
        with broker.subscribe(topic, group="g") as member, broker.subscribe(topic, name=f"n {topic}"):
            broker.publish(topic, b"x")
            member.receive(timeout=PATIENCE)
            done = runnel("top", "--once", "--interval", "200ms", "--server", server)
            found = runnel("top", "--once", "--interval", "200ms", "--json", "--server", server).json()
    assert done.status == 0
    first, second, *rest = done.out.splitlines()
    assert re.match(rf"runnel top · {server} · up .* · \d+ connections · \d\d:\d\d:\d\d$", first)
    assert second.startswith("published ")
    assert any(line.split()[:1] == [topic] for line in rest)
    (group,) = (one for one in found["groups"] if one["reads"] == topic)
    assert (group["group"], group["lag"], group["in_flight"], group["members"]) == ("g", 1, 1, 1)
    assert [one["end"] for one in found["topics"] if one["topic"] == topic] == [1]


def test_a_line_each_interval_for_programs(server: str) -> None:
    command = [sys.executable, "-m", "runnel", "top", "--json", "--interval", "100ms", "--server", server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        views = [json.loads(child.stdout.readline()) for _ in range(3)]
        child.kill()
    assert all(0.1 <= view["seconds"] < PATIENCE for view in views)


def test_on_a_terminal_it_draws_in_place_until_q(server: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "runnel", "top", "--interval", "100ms", "--server", server]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        seen, until = b"", time.monotonic() + PATIENCE
        while seen.count(b"\x1b[H") < 4 and time.monotonic() < until:
            seen += os.read(ours, 65536)
        os.write(ours, b"q")
        while b"\x1b[?1049l" not in seen and time.monotonic() < until:
            seen += os.read(ours, 65536)
        assert child.wait(PATIENCE) == 0
    os.close(ours)
    assert seen.startswith(b"\x1b[?1049h")
    assert b"published " in seen


def test_the_page_fits_and_short_tables_leave_room_for_long_ones() -> None:
    lines = draw(VIEW, "title", 24, colourful=False)
    assert len(lines) <= 24
    heads = [line.split()[0] for line in lines if line.isupper() or line.startswith(("TOPIC", "GROUP", "SUBSCRIBER"))]
    assert heads == ["TOPIC", "GROUP", "SUBSCRIBER"]
    assert sum(line.startswith("t") and "100 B" in line for line in lines) == 14
    assert len(draw(VIEW, "title", 1000, colourful=False)) == 2 + 3 * 2 + 32


def test_relays_come_first_with_lag_slot_and_error() -> None:
    relay = RelayStatistics(
        slot="s",
        state="streaming",
        lag_bytes=2048,
        lag_seconds=3.0,
        rows_per_second=12.0,
        wal_status="extended",
        retained_bytes=1 << 20,
        last_error="a\nb",
    )
    lines = draw(msgspec.structs.replace(VIEW, relays=(relay,)), "here", 100, colourful=False)
    head = next(at for at, line in enumerate(lines) if line.startswith("RELAY"))
    assert head < next(at for at, line in enumerate(lines) if line.startswith("TOPIC"))
    assert re.split(r"  +", lines[head + 1]) == [
        "s",
        "streaming",
        "12",
        "2.0 KiB",
        "3 s",
        "extended",
        "1.0 MiB",
        "-",
        "a\\nb",
    ]


def test_an_archive_of_postgresql_is_among_the_relays() -> None:
    archive = RelayStatistics(kind="archive", slot="public.t", state="copying", lag_seconds=3.0, rows_per_second=12.0)
    lines = draw(msgspec.structs.replace(VIEW, relays=(archive,)), "here", 100, colourful=False)
    (row,) = (line for line in lines if line.startswith("into public.t"))
    assert re.split(r"  +", row) == ["into public.t", "copying", "12", "-", "3 s", "-", "-", "-", "-"]


def test_what_is_wrong_catches_the_eye() -> None:
    lines = draw(VIEW, "title", 24, colourful=True)
    assert f"{RED}dropped 4/s (44 ever)" in lines[1]
    assert "3 publishers wait" in lines[1]
    assert any("paused" in line for line in lines)
    assert RED not in "".join(draw(VIEW, "title", 24, colourful=False))


def test_an_empty_server_says_so() -> None:
    empty = BrokerRates(1.0, 0.0, 0.0, 0.0, 0.0, 0, 0, (), (), ())
    assert draw(empty, "title", 24, colourful=False)[-1] == "there are no topics yet"
    assert heading("data", {}).startswith("runnel top · data · ")


@pytest.mark.parametrize("interval", ["soon", "0s", "10ms"])
def test_an_interval_that_makes_no_sense_is_refused(runnel: Command, interval: str) -> None:
    done = runnel("top", "--interval", interval)
    assert (done.status, done.err.endswith("(invalid_option)\n")) == (2, True)


# -- A key is noticed at once, without Enter; where there is no keyboard, never ------------------------------


async def test_a_key_is_noticed_and_the_terminal_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        before = termios.tcgetattr(theirs)
        with key_pressed("q") as came:
            os.write(ours, b"x")
            os.write(ours, b"q")
            async with asyncio.timeout(PATIENCE):
                await came.wait()
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


async def test_without_a_terminal_it_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (io.StringIO("q"), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        with key_pressed("q") as came:
            await asyncio.sleep(0)
            assert not came.is_set()


# -- Two looks at a broker become rates; what is new, made again or restarted counts from nothing ------------


def topic(name: str, published: int, epoch: int = 1) -> TopicStatistics:
    return TopicStatistics(name, epoch, published, published * 10, 0, published, published * 10, 1)


def group(acked: int, redelivered: int = 0, lag: int = 0) -> GroupStatistics:
    return GroupStatistics("g", "t", lag, 2, 0, 1.5, acked, redelivered, 4, 0, 0, False, ())


def seen(**more: Any) -> Statistics:
    empty: dict[str, Any] = {"topics": {}, "subscriptions": (), "groups": (), "handlers": (), "flowed": {}}
    sums = {"published": 0, "published_bytes": 0, "delivered": 0, "dropped": 0, "waiting_publishers": 0}
    return Statistics(**(empty | sums | more))


def test_counters_become_rates_over_the_time_between() -> None:
    before = seen(published=100, delivered=50, dropped=1, topics={"t": topic("t", 100)}, groups=(group(5),))
    now = seen(published=300, delivered=450, dropped=3, topics={"t": topic("t", 300)}, groups=(group(25, 4, 7),))
    view = rates_between(before, now, 2.0)
    assert (view.published, view.delivered, view.dropped, view.dropped_ever) == (100.0, 200.0, 1.0, 3)
    assert (view.topics[0].published, view.topics[0].published_bytes, view.topics[0].end) == (100.0, 1000.0, 300)
    one = view.groups[0]
    assert (one.acked, one.redelivered, one.lag, one.dead_lettered, one.members) == (10.0, 2.0, 7, 4, 0)


def test_what_is_new_or_made_again_counts_from_nothing_and_never_backwards() -> None:
    before = seen(published=100, topics={"t": topic("t", 100), "v": topic("v", 100)})
    now = {"t": topic("t", 150, epoch=2), "u": topic("u", 8), "v": topic("v", 5)}
    view = rates_between(before, seen(published=5, topics=now), 1.0)
    assert {one.topic: one.published for one in view.topics} == {"t": 150.0, "u": 8.0, "v": 5.0}
    assert view.published == 5.0


def test_the_busiest_topic_is_first_and_the_reader_that_drops_most() -> None:
    view = rates_between(
        seen(),
        seen(
            topics={name: topic(name, count) for name, count in (("a", 1), ("b", 9), ("c", 1))},
            flowed={
                ("a", "slow"): SubscriberTotals(5, 0, 0, 90),
                ("b", "lossy"): SubscriberTotals(5, 3, 0, 0),
                ("c", "ok"): SubscriberTotals(5, 0, 0, 0),
            },
        ),
        1.0,
    )
    assert [one.topic for one in view.topics] == ["b", "a", "c"]
    assert [(one.subscriber, one.dropped, one.lag) for one in view.readers] == [
        ("lossy", 3, 0),
        ("slow", 0, 90),
        ("ok", 0, 0),
    ]


def test_a_name_that_reads_elsewhere_is_a_reader_by_its_places() -> None:
    def at(place: int, lag: int | None) -> dict[str, Any]:
        return {"cursors": (CursorStatistics("q/t", "t", place, lag, True), CursorStatistics("p", ">", 9, None, False))}

    (row,) = rates_between(seen(**at(100, 50)), seen(**at(300, 7)), 2.0).readers
    assert (row.reads, row.subscriber, row.delivered, row.lag) == ("t", "q/t", 100.0, 7)
    (row,) = rates_between(seen(), seen(**at(300, 7)), 2.0).readers
    assert row.delivered == 0.0  # it was not there before: nothing is known of how fast it moves


def test_a_name_that_was_left_shows_the_lag_of_its_place() -> None:
    left = seen(
        flowed={("t", "me"): SubscriberTotals(5, 0, 0, 0)}, cursors=(CursorStatistics("me", "t", 5, 12, False),)
    )
    (row,) = rates_between(seen(), left, 1.0).readers
    assert (row.delivered, row.lag) == (5.0, 12)


# -- A page is drawn over itself: one write, no line wider than the terminal, nothing left behind ------------


class Counting(io.StringIO):
    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Counting:
    # The variables, not the function: pytest itself asks for the size of its terminal.
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "3")
    return Counting()


def test_the_page_begins_at_the_top_and_clears_what_is_left_of_each_line(stream: Counting) -> None:
    with Screen(stream) as screen:
        stream.truncate(0)
        stream.seek(0)
        before = stream.writes
        screen.show(["one", "a line that is too long", "three", "four"])
        assert stream.writes == before + 1
        assert stream.getvalue() == "\x1b[Hone\x1b[K\r\na line tha\x1b[K\r\nthree\x1b[K\x1b[J"


def test_what_was_there_before_comes_back_whatever_happened(stream: Counting) -> None:
    with pytest.raises(KeyboardInterrupt), Screen(stream):
        raise KeyboardInterrupt
    assert stream.getvalue().startswith("\x1b[?1049h\x1b[?25l")
    assert stream.getvalue().endswith("\x1b[?25h\x1b[?1049l")


def test_styles_take_no_room_and_are_ended() -> None:
    line = f"{BOLD}abc{PLAIN}def"
    assert cut(line, 6) == line
    assert cut(line, 4) == f"{BOLD}abc{PLAIN}d"
    assert cut(line, 2) == f"{BOLD}ab{PLAIN}"
