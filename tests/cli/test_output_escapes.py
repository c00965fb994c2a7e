"""Names that others chose do nothing to the terminal, or to the lines of a log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnel.cli.errors import CommandError, print_error
from runnel.cli.output import escaped, pairs, print_line, table
from runnel.cli.server_process import TextLogFormatter
from runnel.cli.top import BrokerRates, GroupRow, ReaderRow, TopicRow, draw
from runnel.core import markers, options, stages
from runnel.opening import open as open_broker
from tests.cli.conftest import Command

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
