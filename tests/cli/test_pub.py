"""`runnel pub`: a value, lines, a file; in order, all of it, and told where it is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.cli import pub as module
from runnel.cli.options import read_headers
from runnel.cli.pub import read_lines, split_lines
from runnel.core.errors import InvalidOption
from tests.cli.conftest import Command, Terminal
from tests.patience import PATIENCE


def values(runnel: Command, server: str, topic: str) -> list[str]:
    lines = runnel("sub", topic, "--from", "earliest", "--idle", "300ms", "--json", "--server", server).lines()
    return [line["value"] for line in lines]


def piped(text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "runnel", "pub", *arguments], input=text, capture_output=True)


def test_a_value_is_published_with_key_and_headers_and_its_offset_is_returned(
    runnel: Command, server: str, topic: str
) -> None:
    at = ("--server", server)
    assert runnel("pub", topic, "hello", *at).out == f"{topic}  0\n"
    done = runnel("pub", topic, "wörld", "--key", "k", "--header", "a=b=c", "--header", "d=", *at, "--json").json()
    assert (done["topic"], done["count"], done["last"]) == (topic, 1, 1)
    (line,) = runnel("sub", topic, "--from", "1", "--count", "1", "--json", *at).lines()
    assert (line["value"], line["key"], line["headers"]) == ("wörld", "k", {"a": "b=c", "d": ""})


def test_a_value_many_times(runnel: Command, server: str, topic: str) -> None:
    done = runnel("pub", topic, "x", "--count", "2500", "--server", server)
    assert done.out.startswith(f"2,500 records to {topic!r}, the last at offset 2,499; ")
    assert runnel("pub", topic, "x", "--count", "0", "--server", server).out == "there was nothing to publish\n"


@pytest.mark.parametrize("dash", [("-",), ()])
def test_lines_of_the_input_in_order(runnel: Command, server: str, topic: str, dash: tuple[str, ...]) -> None:
    text = b"".join(b"%d\n" % number for number in range(10_000)) + b"last"
    done = piped(text, topic, *dash, "--server", server, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert values(runnel, server, topic) == [*map(str, range(10_000)), "last"]


def test_lines_of_a_file_so_many_at_most_with_a_key(runnel: Command, server: str, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\r\n\nc\nd\n")
    at = ("--server", server)
    assert runnel("pub", topic, "--file", "lines", "--count", "3", "--key", "k", *at, "--json").json()["count"] == 3
    lines = runnel("sub", topic, "--from", "earliest", "--count", "3", "--json", *at).lines()
    assert [(line["value"], line["key"]) for line in lines] == [("a", "k"), ("", "k"), ("c", "k")]


def test_a_file_as_one_record(runnel: Command, server: str, topic: str, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"a\n\xff\n")
    assert runnel("pub", topic, "--file", "raw", "--whole", "--server", server).status == 0
    (line,) = runnel("sub", topic, "--from", "0", "--count", "1", "--json", "--server", server).lines()
    assert line["value_base64"] == "YQr/Cg=="


def test_a_line_that_was_typed_is_published_before_the_next_one(runnel: Command, server: str, topic: str) -> None:
    command = [sys.executable, "-m", "runnel", "pub", topic, "-", "--server", server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(b"first\n")
        child.stdin.flush()
        (line,) = runnel("sub", topic, "--from", "earliest", "--count", "1", "--json", "--server", server).lines()
        assert line["value"] == "first"
        child.stdin.close()
        assert child.wait(PATIENCE) == 0


def test_a_rate_is_kept(runnel: Command, server: str, topic: str) -> None:
    began = time.monotonic()
    found = runnel("pub", topic, "x", "--count", "20", "--rate", "40", "--server", server, "--json").json()
    assert time.monotonic() - began >= 0.45
    assert (found["count"], found["seconds"] >= 0.45) == (20, True)


def test_a_folder_can_be_published_to_without_a_server(runnel: Command) -> None:
    assert runnel("pub", "orders", "hello", "--data", "data").out == "orders  0\n"
    assert "hello" in runnel("log", "cat", "data", "orders").out


def test_progress_is_shown_where_a_person_sees_it(
    runnel: Command, server: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    runnel("pub", topic, "--file", "lines", "--server", server)
    assert "publishing [##############################] 100% of 4 B" in terminal.getvalue()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("a b", "x"), "invalid_name"),
        (("t", "x", "--rate", "0"), "invalid_option"),
        (("t", "x", "--count", "-1"), "invalid_option"),
        (("t", "x", "--header", "novalue"), "invalid_option"),
        (("t", "x", "--file", "f"), "usage_error"),
        (("t", "x", "--whole"), "usage_error"),
    ],
)
def test_invalid_arguments_are_refused_before_any_request(
    runnel: Command, arguments: tuple[str, ...], code: str
) -> None:
    done = runnel("pub", *arguments, "--server", "runnel://127.0.0.1:1")
    assert (done.status, done.out) == (2, "")
    assert done.err.endswith(f"({code})\n")


def test_a_missing_file_is_reported(runnel: Command, server: str) -> None:
    done = runnel("pub", "t", "--file", "none", "--server", server)
    assert (done.status, done.err) == (1, "runnel: none: No such file or directory (os_error)\n")


def test_headers() -> None:
    assert read_headers(["a=1", "b=x=y", "a=2"]) == {"a": "2", "b": "x=y"}
    with pytest.raises(InvalidOption, match="NAME=VALUE"):
        read_headers(["=x"])


def test_a_value_may_be_any_bytes_that_a_shell_can_say(runnel: Command, server: str, topic: str) -> None:
    assert runnel("pub", topic, os.fsdecode(b"\xff"), "--server", server).status == 0
    (line,) = runnel("sub", topic, "--from", "0", "--count", "1", "--json", "--server", server).lines()
    assert line["value_base64"] == "/w=="


# -- Lines come in chunks, as they are there, whole and in order ---------------------------------------------


@given(st.binary(), st.lists(st.integers(1, 9)))
def test_however_the_bytes_come_the_lines_are_the_same(data: bytes, cuts: list[int]) -> None:
    found, carry, at = [], b"", 0
    for cut in [*cuts, len(data)]:
        some, carry = split_lines(carry, data[at : at + cut])
        found += some
        at += cut
    some, carry = split_lines(carry, data[at:])
    found += some
    whole = data.split(b"\n")
    assert carry == whole[-1]
    assert found == [line.removesuffix(b"\r") for line in whole[:-1]]


async def test_a_line_is_there_as_soon_as_it_was_typed_and_the_last_needs_no_end() -> None:
    reading, writing = os.pipe()
    try:
        lines = read_lines(reading)
        os.write(writing, b"one\n")
        assert await anext(lines) == ([b"one"], 4)
        os.write(writing, b"two\r\nthr")
        assert await anext(lines) == ([b"two"], 12)
        os.write(writing, b"ee")
        os.close(writing)
        assert await anext(lines) == ([b"three"], 14)
        assert await anext(lines, None) is None
    finally:
        os.close(reading)


async def test_a_big_input_is_never_in_memory_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 64)
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        for _ in range(500):
            os.write(writing, b"x" * 63 + b"\n")
        lines = read_lines(reading)
        first = await anext(lines)
        assert first == ([b"x" * 63], 64)
        count = 1
        for _ in range(200):  # turns of the loop, in which the reader could run away
            await asyncio.sleep(0)
        os.close(writing)
        async for chunk, _ in lines:
            count += len(chunk)
        assert count == 500
    finally:
        os.close(reading)


async def test_an_unreadable_record_is_reported(tmp_path: object) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    os.close(reading)
    with pytest.raises(OSError, match="descriptor"):
        await anext(read_lines(reading))
