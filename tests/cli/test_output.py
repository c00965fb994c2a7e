"""Tables that line up, and numbers that people read."""

from __future__ import annotations

import base64
import io
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runnel.cli.errors import CommandError, print_error
from runnel.cli.output import (
    BOLD,
    GREEN,
    PLAIN,
    RED,
    Elapsed,
    ProgressBar,
    Size,
    StatusLine,
    escaped,
    human_age,
    human_size,
    human_time,
    is_colourful,
    iso,
    line_of,
    many,
    not_synced,
    of_gap,
    of_record,
    painted,
    pairs,
    print_document,
    print_line,
    readable,
    table,
)
from runnel.cli.process_settings import TextLogFormatter
from runnel.cli.top import BrokerRates, GroupRow, ReaderRow, TopicRow, draw
from runnel.core import markers, options, stages
from runnel.core.record import Gap, Record
from runnel.opening import open as open_broker
from tests.cli.conftest import Command, Terminal
from tests.patience import PATIENCE


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    shown = table(("TOPIC", "END", "SIZE"), [("a", 5, Size(100)), ("long.name", 12_345, Size(2048)), ("b", None, None)])
    assert shown.splitlines() == [
        "TOPIC         END     SIZE",
        "a               5    100 B",
        "long.name  12,345  2.0 KiB",
        "b               -        -",
    ]


def test_columns_are_aligned_as_a_terminal_shows_them() -> None:
    shown = table(["TOPIC", "RECORDS"], [["日本.東京", 1], ["cafe\u0301", 20], ["ascii", 300]])
    assert shown.splitlines() == [
        "TOPIC      RECORDS",
        "日本.東京        1",  # nine columns wide
        "cafe\u0301            20",
        "ascii          300",
    ]


def test_a_table_without_rows_is_its_heads() -> None:
    assert table(("A", "B"), []) == "A  B"


def test_a_column_of_nothing_stands_to_the_left() -> None:
    assert table(("OPTIONS",), [(None,)]).splitlines() == ["OPTIONS", "-"]


def test_pairs_line_up() -> None:
    assert pairs([("a", 1), ("longer", "x"), ("none", "")]) == "a       1\nlonger  x\nnone"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 62, "4096.0 PiB")],
)
def test_sizes(size: int, shown: str) -> None:
    assert human_size(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (86400 * 3 + 7200, "3 d 2 h")],
)
def test_ages(seconds: float, shown: str) -> None:
    assert human_age(seconds) == shown


def test_times_and_counts() -> None:
    assert human_time(0) is None
    assert human_time(1_700_000_000_999_999) == "2023-11-14 22:13:20"
    assert (many(1, "topic"), many(1000, "topic")) == ("1 topic", "1,000 topics")


def test_what_a_look_leaves_out_is_said() -> None:
    assert not_synced(1, 2048) == "1 record (2.0 KiB) written and not yet synced are not shown"
    assert not_synced(2, 5, "are not in it") == "2 records (5 B) written and not yet synced are not in it"


# -- A record on one line: nothing in it breaks the line, or the terminal ------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [(b"", ""), (b"plain", "plain"), (b"a\tb\x1b[1m", "a\\tb\\x1b[1m"), (b"\xff\x00", "hex:ff00")],
)
def test_a_value_never_breaks_its_line_or_the_terminal(value: bytes, shown: str) -> None:
    assert readable(value) == shown


def test_a_line_has_topic_offset_time_key_and_value() -> None:
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    record = Record(topic="t", offset=3, sequence=9, epoch=1, key=None, value=b"a\nb", headers={}, time=at)
    assert line_of(record) == "t  3  2026-05-01T12:00:00.000000Z  -  a\\nb"


# -- JSON for programs: text where it is text, base64 where it is not, and always said which -----------------


TIME = datetime(2026, 5, 1, 12, tzinfo=UTC)


def record(key: bytes | None, value: bytes) -> Record[bytes]:
    return Record("t", 5, 9, 7, key, value, {"h": "1"}, TIME)


def test_a_record_of_text() -> None:
    assert of_record(record(b"k", "hällo".encode())) == {
        "topic": "t",
        "offset": 5,
        "sequence": 9,
        "epoch": 7,
        "time": "2026-05-01T12:00:00.000000Z",
        "key": "k",
        "headers": {"h": "1"},
        "value": "hällo",
    }


def test_bytes_that_are_no_text_are_base64_and_named_so() -> None:
    found = of_record(record(b"\xff", b"\xfe"))
    assert "key" not in found
    assert "value" not in found
    assert base64.b64decode(found["key_base64"]) == b"\xff"
    assert base64.b64decode(found["value_base64"]) == b"\xfe"
    assert of_record(record(None, b""))["key"] is None


def test_a_gap() -> None:
    gap = of_gap(Gap("t", 1, 3, 2, "damaged"))
    assert gap == {"gap": {"topic": "t", "first": 1, "end": 3, "count": 2, "reason": "damaged"}}


def test_a_document_is_indented_and_a_line_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"a": [1]})
    assert json.loads(out := capsys.readouterr().out) == {"a": [1]}
    assert out.count("\n") > 1
    paper = io.StringIO()
    print_line({"a": "x\ny"}, paper)
    assert paper.getvalue() == '{"a":"x\\ny"}\n'


@pytest.mark.parametrize(
    ("encoding", "escaped"), [("utf-8", False), ("UTF8", False), ("ascii", True), ("cp1252", True)]
)
def test_json_is_json_in_every_encoding(encoding: str, escaped: bool) -> None:
    written = io.BytesIO()
    paper = io.TextIOWrapper(written, encoding=encoding)
    print_line({"a": "hä 🎉"}, paper)
    paper.flush()
    assert json.loads(written.getvalue().decode(encoding)) == {"a": "hä 🎉"}
    assert written.getvalue().isascii() is escaped


def test_times_are_in_utc_to_the_microsecond() -> None:
    assert iso(TIME) == "2026-05-01T12:00:00.000000Z"


# -- Names that others chose do nothing to the terminal, or to the lines of a log ----------------------------


EVIL = "a\x1b[2J\x9b31m\r\nb"
SHOWN = r"a\x1b[2J\x9b31m\r\nb"


@pytest.fixture
async def old_folder(tmp_path: Path) -> Path:
    """A folder with names as an earlier version let them be."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (options, markers, stages):
            patch.setattr(module, "check_no_control", lambda option, name: name)
        async with open_broker(tmp_path / "data") as broker:
            await broker.publish("orders", b"x")
            async with broker.subscribe("orders", name=EVIL, start="earliest") as records:
                await anext(records)
            async with broker.transaction() as tx:
                tx.mark(EVIL, 1)
            await broker.stage("orders", writer=EVIL, batch=1).write([b"x"])
    return tmp_path / "data"


@pytest.mark.parametrize(
    "command",
    [
        ("cursor", "list"),
        ("topic", "show", "orders"),
        ("log", "info"),
        ("log", "marks"),
        ("log", "marks", "--producer", EVIL),
        ("log", "staged"),
        ("info",),
        ("cursor", "forget", EVIL, "--yes"),
        ("cursor", "forget", f"no {EVIL}", "--yes"),
    ],
)
@pytest.mark.parametrize("form", ["people", "programs"])
async def test_what_was_stored_is_shown_without_effect(
    runnel: Command, old_folder: Path, command: tuple[str, ...], form: str
) -> None:
    done = runnel(*command, "--data", str(old_folder), *(["--json"] if form == "programs" else []))
    assert done.out + done.err
    assert all(one.isprintable() or one == "\n" for one in done.out + done.err), done


def test_cells_and_pairs_are_escaped_and_stay_in_their_columns() -> None:
    lines = table(("NAME", "COUNT"), [(EVIL, 1), ("b", 22)]).split("\n")
    assert lines == [f"NAME{' ' * (len(SHOWN) - 4)}  COUNT", f"{SHOWN}      1", f"b{' ' * (len(SHOWN) - 1)}     22"]
    assert pairs([("name", EVIL)]) == f"name  {SHOWN}"
    assert escaped("Ünïcödé 漢字") == "Ünïcödé 漢字"
    assert escaped("\u202eevil") == r"\u202eevil"  # it would turn the rest of the line around


def test_the_page_of_top_has_the_names_of_others() -> None:
    rows = (TopicRow("t", 1.0, 1.0, 1, 1, 1),), (GroupRow("g", "t", 1.0, 1, 1, 0.0, 0, 0.0, 1, False),)
    view = BrokerRates(1.0, 1.0, 1.0, 1.0, 0.0, 0, 0, *rows, (ReaderRow("t", EVIL, 1.0, 0.0, 0, 0),))
    lines = draw(view, "server", 100, colourful=False)
    assert any(SHOWN in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_json_has_no_control_characters() -> None:
    stream = io.StringIO()
    print_line({"name": EVIL}, stream)
    assert stream.getvalue() == '{"name":"a\\u001b[2J\\u009b31m\\r\\nb"}\n'


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(CommandError("code", f"there is no {EVIL}"))
    assert capsys.readouterr().err == "runnel: there is no a\\x1b[2J\\x9b31m b (code)\n"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What a logger of a server writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLogFormatter())
    logger = logging.getLogger("runnel.tests")
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def test_a_name_forges_no_line_of_the_log(logged: io.StringIO) -> None:
    logging.getLogger("runnel.tests").warning("subscriber %s is slow", EVIL)
    (line,) = logged.getvalue().splitlines()
    assert line.endswith(f"subscriber {SHOWN} is slow")


# -- Colour only where somebody sees it ----------------------------------------------------------------------


def test_a_terminal_gets_colour_and_a_file_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert is_colourful(Terminal())
    assert not is_colourful(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colourful(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not is_colourful(Terminal())


def test_text_is_painted_or_left_as_it_is() -> None:
    assert painted("a", BOLD, True) == f"{BOLD}a{PLAIN}"
    assert painted("a", BOLD, False) == "a"
    assert painted("", BOLD, True) == ""


def test_a_table_in_colour_lines_up_and_shows_what_is_well() -> None:
    rows = [("disk", "ok"), ("a clock", "wrong"), ("ok", "sealed")]
    shown = table(("WHAT", "STATE"), rows, colourful=True)
    assert shown.splitlines() == [
        f"{BOLD}WHAT   {PLAIN}  {BOLD}STATE{PLAIN}",
        f"disk     {GREEN}ok{PLAIN}",
        f"a clock  {RED}wrong{PLAIN}",
        "ok       sealed",
    ]
    for code in (BOLD, GREEN, RED, PLAIN):
        shown = shown.replace(code, "")
    assert shown == table(("WHAT", "STATE"), rows)


def test_names_of_facts_are_bold() -> None:
    assert pairs([("a", 1), ("longer", "x")], colourful=True) == f"{BOLD}a     {PLAIN}  1\n{BOLD}longer{PLAIN}  x"


# -- A bar on a terminal, and nothing anywhere else ----------------------------------------------------------


def test_a_bar_grows_and_is_gone_when_the_work_ends() -> None:
    terminal = Terminal()
    with ProgressBar("reading", terminal) as bar:
        bar(0, 2048)
        bar(1024, 2048)
        bar(1024, 2048)  # nothing new: nothing written
    _, empty, half, gone, end = terminal.getvalue().split("\r")
    assert empty == f"reading [{'.' * 30}]   0% of 2.0 KiB"
    assert half == f"reading [{'#' * 15}{'.' * 15}]  50% of 2.0 KiB"
    assert gone.strip() == end == ""


def test_what_is_not_bytes_is_named() -> None:
    terminal = Terminal()
    with ProgressBar("exporting", terminal, unit="record") as bar:
        bar(1000, 2000)
    assert "50% of 2,000 records" in terminal.getvalue()


def test_nothing_to_do_is_done() -> None:
    terminal = Terminal()
    with ProgressBar("reading", terminal) as bar:
        bar(0, 0)
    assert "100%" in terminal.getvalue()


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("reading") as bar:
        bar(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_line_is_shown_in_place_and_the_caller_learns_whether_it_is_visible() -> None:
    terminal, file = Terminal(), io.StringIO()
    with StatusLine(terminal) as ticker:
        assert ticker("10 records")
        assert ticker("9")
    assert terminal.getvalue() == "\r10 records\r9         \r \r"
    with StatusLine(file) as ticker:
        assert not ticker("10 records")
    assert file.getvalue() == ""


def test_what_takes_longer_than_a_second_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = threading.Event()

    class Watched(Terminal):
        def write(self, text: str) -> int:
            if "replaying: 2 s" in text:
                shown.set()
            return super().write(text)

    monkeypatch.setattr("runnel.cli.output.SECOND", 0.001)
    terminal = Watched()
    with Elapsed("replaying", terminal):
        assert shown.wait(PATIENCE)
    assert "replaying: 1 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")  # and is gone at the end


def test_what_is_quick_says_nothing() -> None:
    terminal = Terminal()
    with Elapsed("replaying", terminal):
        pass
    assert terminal.getvalue() == ""
