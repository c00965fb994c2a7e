"""`runnel top`: rates, lag and drops; once, again and again, for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time

import msgspec
import pytest

import runnel as package
from runnel.cli.output import RED
from runnel.cli.top import BrokerRates, GroupRow, ReaderRow, TopicRow, draw, heading
from runnel.core.statistics import RelayStatistics
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
