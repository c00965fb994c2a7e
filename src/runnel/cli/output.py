"""Output of commands: tables and progress bars for people, JSON for programs, colour on a terminal.

Bytes in JSON are text where they are UTF-8; otherwise the field is called `…_base64`. A line for people never breaks
the line or the terminal.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar
from unicodedata import combining, east_asian_width

import msgspec

from runnel.core.record import Gap, Record

T = TypeVar("T")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, colourful: bool = False) -> str:
    """Columns under their heads; numbers are aligned right. In colour, a column STATE shows problems."""
    given = [list(row) for row in rows]
    shown = [list(heads), *([text(cell) for cell in row] for row in given)]
    widths = [max(cells_of(line[at]) for line in shown) for at in range(len(heads))]
    right = [_is_numbers([row[at] for row in given]) for at in range(len(heads))]
    lines = []
    for number, line in enumerate(shown):
        cells = [
            padding + cell if to_right else cell + padding
            for cell, width, to_right in zip(line, widths, right, strict=True)
            for padding in [" " * (width - cells_of(cell))]
        ]
        cells[-1] = cells[-1].rstrip()
        if colourful:
            styles = [
                BOLD if not number else _STATES.get(cell.strip(), "") if head == "STATE" else ""
                for head, cell in zip(heads, cells, strict=True)
            ]
            cells = [painted(cell, style, bool(style)) for cell, style in zip(cells, styles, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, in colour on a terminal."""
    print(table(heads, rows, colourful=is_colourful(sys.stdout)))


def known_columns(columns: Mapping[str, T], rows: Sequence[Mapping[str, object]]) -> dict[str, T]:
    """The columns that something is known for: a folder and a server know different things."""
    return {key: column for key, column in columns.items() if not rows or any(key in row for row in rows)}


def pairs(facts: Iterable[tuple[str, object]], *, colourful: bool = False) -> str:
    """Names and what they stand for, a line each."""
    shown = [(name, text(value)) for name, value in facts]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"{painted(name.ljust(width), BOLD, colourful)}  {value}".rstrip() for name, value in shown)


def print_pairs(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and what they stand for, in colour on a terminal."""
    print(pairs(facts, colourful=is_colourful(sys.stdout)))


def many(count: int, what: str) -> str:
    """So many of something: `1 topic`, `2 topics`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def not_synced(records: int, size: int, where: str = "are not shown") -> str:
    """The parts that a look beside a running owner leaves out."""
    return f"{many(records, 'record')} ({human_size(size)}) written and not yet synced {where}"


def _is_numbers(cells: Sequence[object]) -> bool:
    said = [cell for cell in cells if cell is not None]
    return bool(said) and all(isinstance(cell, int) for cell in said)


class Size(int):
    """Bytes, shown as people count them."""

    def __str__(self) -> str:
        return human_size(int(self))


def text(cell: object) -> str:
    """A cell as shown. Names from users cannot break the line or the terminal."""
    if cell is None:
        return "-"
    if isinstance(cell, Size | bool) or not isinstance(cell, int):
        return escaped(str(cell))
    return f"{cell:,}"


def cells_of(text: str) -> int:
    """How many columns of a terminal the text takes: two for each East Asian character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def escaped(text: str) -> str:
    """The text, with unprintable characters escaped: no name and no message moves the cursor or hides a line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def human_size(size: int) -> str:
    """Bytes in the unit that fits: `1.5 MiB`."""
    amount = float(size)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def human_age(seconds: float) -> str:
    """A length of time in its two largest units: `3 d 4 h`."""
    left = max(0, int(seconds))
    found: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, length)
        if amount or (unit == "s" and not found):
            found.append(f"{amount} {unit}")
    return " ".join(found[:2])


def human_time(microseconds: int) -> str | None:
    """A time of the journal, in UTC, to the second; None for never."""
    if not microseconds:
        return None
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


# -- JSON for programs -----------------------------------------------------------------------------------


_UTF_8 = ("utf-8", "utf8")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")  # in JSON these are in strings only
_CONTROL = re.compile(r"[\x7f-\x9f]")  # those that JSON does not escape, and that terminals act on


def print_document(found: object) -> None:
    """One JSON document, indented."""
    print(_fit(msgspec.json.format(msgspec.json.encode(found), indent=2).decode(), sys.stdout))


def print_done(text: str, facts: Mapping[str, object], *, as_json: bool) -> None:
    """The result of a command: a sentence for people, or its facts as one JSON document."""
    if as_json:
        print_document(facts)
    else:
        print(text)


def print_line(found: object, stream: TextIO | None = None) -> None:
    """One JSON document on a line of its own."""
    out = stream or sys.stdout
    out.write(_fit(msgspec.json.encode(found).decode(), out) + "\n")


def of_record(record: Record[bytes]) -> dict[str, Any]:
    """A record as an object."""
    return {
        "topic": record.topic,
        "offset": record.offset,
        "sequence": record.sequence,
        "epoch": record.epoch,
        "time": iso(record.time),
        **_bytes("key", record.key),
        "headers": dict(record.headers),
        **_bytes("value", record.value),
    }


def of_gap(gap: Gap) -> dict[str, Any]:
    """An unreadable record, as an object."""
    return {"gap": msgspec.structs.asdict(gap)}


def iso(time: datetime) -> str:
    """A time in UTC, to the microsecond."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _fit(text: str, stream: TextIO) -> str:
    """The same JSON without control characters, and with all but ASCII escaped where the stream may not be UTF-8."""
    is_utf_8 = (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-") in _UTF_8
    text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text if is_utf_8 else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


# -- Records for people ----------------------------------------------------------------------------------


def line_of(record: Record[bytes]) -> str:
    """A record on one line."""
    key = "-" if record.key is None else readable(record.key)
    return f"{record.topic}  {record.offset}  {iso(record.time)}  {key}  {readable(record.value)}"


def readable(value: bytes) -> str:
    """Text unchanged, except for escaped control characters; other bytes as hex."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"
    return escaped(text)


# -- Progress, on the error stream -----------------------------------------------------------------------


WIDTH = 30
SECOND = 1.0


class StatusLine:
    """Call it with a line about the progress: shown in place on the error stream, if that is a terminal.

    The call returns whether it is. The line is cleared at the end.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = ""

    def __enter__(self) -> StatusLine:
        return self

    def __call__(self, line: str) -> bool:
        """Show the line in the place of the last one; False where the stream is no terminal."""
        if not self._stream.isatty():
            return False
        if line != self._shown:
            self._stream.write("\r" + line.ljust(len(self._shown)) + ("" if line else "\r"))
            self._stream.flush()
            self._shown = line
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self("")


class ProgressBar:
    """Call it with the amount done, and the total: `with Bar("reading") as bar: bar(512, 1024)`. Cleared at the end.

    It counts bytes, or what `unit` names.
    """

    def __init__(self, label: str, stream: TextIO | None = None, *, unit: str | None = None) -> None:
        self._label, self._unit = label, unit
        self._ticker = StatusLine(stream)

    def __enter__(self) -> ProgressBar:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show the progress; nothing where the stream is no terminal."""
        share = min(1.0, done / total) if total else 1.0
        filled = int(share * WIDTH)
        bar = "#" * filled + "." * (WIDTH - filled)
        self._ticker(f"{self._label} [{bar}] {share:4.0%} of {self._amount(total)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticker.__exit__(kind, error, trace)

    def _amount(self, total: int) -> str:
        return human_size(total) if self._unit is None else many(total, self._unit)


class Elapsed:
    """Says on the error stream what a command waits for, from its second second on: `with Elapsed("replaying"):`.

    For work whose progress is not known here, since a server does it. Gone when it ends, and nothing where the stream
    is no terminal. A thread shows it, so that work that does not return to an event loop is seen, too.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label, self._ticker = label, StatusLine(stream)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="runnel-elapsed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._ticker.__exit__(kind, error, trace)

    def _show(self) -> None:
        seconds = 0
        while not self._over.wait(SECOND):
            seconds += 1
            if not self._ticker(f"{self._label}: {human_age(seconds)}"):
                return  # no terminal


# -- Colour ----------------------------------------------------------------------------------------------
# On a terminal, unless NO_COLOR says otherwise (no-color.org).


BOLD, DIM, RED, GREEN, YELLOW, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"

_STATES = {
    **dict.fromkeys(("ok", "active", "running"), GREEN),
    **dict.fromkeys(("missing", "paused", "silent", "starting", "stopping", "waiting"), YELLOW),
    **dict.fromkeys(("wrong", "failed", "died"), RED),
}


def is_colourful(stream: TextIO) -> bool:
    """Whether colour may be written to a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str, colourful: bool) -> str:
    """The text in a style, or unchanged."""
    return f"{style}{text}{PLAIN}" if colourful and text else text
