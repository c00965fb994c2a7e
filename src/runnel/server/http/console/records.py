"""Records for a page of the console: searched in history, and downloaded as NDJSON or Parquet.

A search reads a bounded number of records for each request, returns its progress, and continues with the next request:
so it can be stopped, and occupies neither the event loop nor the disk for long. A download is written as the client
reads it. Both read with the rights of the peer.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from runnel.core.errors import InvalidOption, NotSupported, UnknownTopic
from runnel.core.pattern import check_name
from runnel.core.position import Start
from runnel.core.record import Record
from runnel.server.http.authentication import serving_of
from runnel.server.http.record_json import encode_json, record_as_json
from runnel.server.http.requests import integer_parameter, parameters, parse_start, single_parameter
from runnel.wire.json_events import json_number

if TYPE_CHECKING:
    from runnel.core.backend import Backend
    from runnel.server.served_broker import ServedBroker

PAGE = 1_000  # records that are read at a time
PAGE_BYTES = 4 << 20
PAGES_AT_ONCE = 2  # that searches hold in memory
SEARCHED = 20_000  # records that one request looks at
SEARCH_SECONDS = 0.5  # after which it answers with what it has
FOUND, MOST_FOUND = 100, 500  # records in one answer
FOUND_BYTES = 8 << 20
MAX_NEEDLE = 1_000
DOWNLOADED = 1_000_000  # records of one download
DOWNLOADS_AT_ONCE = 4
CHUNK = 256 << 10


class Wanted(NamedTuple):
    """The criteria of a search."""

    needle: bytes | None  # in lower case: in the value, the key, or a header
    key: bytes | None  # exactly

    def fits(self, record: Record[bytes]) -> bool:
        """Whether the record matches."""
        if self.key is not None and record.key != self.key:
            return False
        needle = self.needle
        if needle is None or needle in record.value.lower() or (record.key and needle in record.key.lower()):
            return True
        return any(needle in f"{name}: {text}".lower().encode() for name, text in record.headers.items())


class RecordRoutes:
    """The routes."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)
        self._downloads = 0

    async def topic(self, request: Request) -> Response:
        """`GET /console/topic?topic=`: its options and its type."""
        backend, asked = serving_of(request.scope, self._serving).backend, parameters(request.scope)
        topic = _topic(asked)
        options, found = await backend.describe(topic), await backend.bounds((topic,), history=False)
        if options is None or not found:
            raise UnknownTopic(topic)
        schema = found[0].schema
        answer = {
            "topic": topic,
            "options": options,
            "durable": found[0].durable,
            "schema": None if schema is None else {"encoding": schema.encoding, "schema": schema.schema},
            "parquet": find_spec("pyarrow") is not None,
        }
        return Response(encode_json(answer), media_type="application/json")

    async def search(self, request: Request) -> Response:
        """`GET /console/records?topic=&from=&find=&key=&limit=`: those that match, and where to continue."""
        backend, asked = serving_of(request.scope, self._serving).backend, parameters(request.scope)
        topic, wanted = _topic(asked), _wanted(asked)
        start = _start(asked)
        limit = integer_parameter(asked, "limit", FOUND, MOST_FOUND)
        loop = asyncio.get_running_loop()
        until = loop.time() + SEARCH_SECONDS
        records: list[Record[bytes]] = []
        searched = size = 0
        while True:
            async with self._pages:
                page = await backend.history(topic, start, PAGE, PAGE_BYTES)
            start = page.next
            for record in page.records:
                searched += 1
                if wanted.fits(record):
                    records.append(record)
                    size += len(record.value)
                    if len(records) >= limit or size >= FOUND_BYTES:
                        start = record.offset + 1
                        break
            is_over = start >= page.end or not page.records
            if is_over or len(records) >= limit or size >= FOUND_BYTES:
                break
            if searched >= SEARCHED or loop.time() >= until or await request.is_disconnected():
                break
            await asyncio.sleep(0)
        answer = {
            "topic": topic,
            "epoch": json_number(page.epoch),
            "first": json_number(page.first),
            "end": json_number(page.end),
            "records": [record_as_json(record) for record in records],
            "next": json_number(start),
            "searched": searched,
            "time": page.records[-1].time if page.records else None,  # of the last that was looked at, or about
        }
        return Response(encode_json(answer), media_type="application/json")

    async def download(self, request: Request) -> Response:
        """`GET /console/download?topic=&from=&to=&find=&key=&format=ndjson|parquet`: as a file."""
        backend, asked = serving_of(request.scope, self._serving).backend, parameters(request.scope)
        topic, wanted, start = _topic(asked), _wanted(asked), _start(asked)
        format = single_parameter(asked, "format") or "ndjson"
        if format not in ("ndjson", "parquet"):
            raise InvalidOption("format", format[:64], "expected ndjson or parquet")
        if format == "parquet" and find_spec("pyarrow") is None:
            why = "pyarrow is not installed on the server: pip install 'runnel-mq[lake]', or download NDJSON"
            raise NotSupported("Parquet", why)
        limit = integer_parameter(asked, "limit", 100_000, DOWNLOADED)
        if self._downloads >= DOWNLOADS_AT_ONCE:
            raise InvalidOption("download", self._downloads + 1, f"{DOWNLOADS_AT_ONCE} are under way: wait for one")
        await backend.history(topic, start, 1, 1)  # errors are raised before the answer begins
        read = _read(backend, topic, start, _end(asked), wanted, limit)
        body = _ndjson(read) if format == "ndjson" else _parquet(topic, read)
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(topic, safe='')}.{format}"}
        kind = "application/x-ndjson" if format == "ndjson" else "application/vnd.apache.parquet"
        return StreamingResponse(self._counted(body), headers=headers, media_type=kind)

    async def _counted(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._downloads += 1
        try:
            async for chunk in body:
                yield chunk
        finally:
            self._downloads -= 1


async def _read(
    backend: Backend, topic: str, start: Start, end: int | datetime | None, wanted: Wanted, limit: int
) -> AsyncIterator[list[Record[bytes]]]:
    """The records from `start` on that fit, page by page: before `end`, and no more than `limit`."""
    before: Callable[[Record[bytes]], bool] = lambda record: True  # noqa: E731
    if isinstance(end, datetime):
        before = lambda record: record.time < end  # noqa: E731
    elif end is not None:
        before = lambda record: record.offset < end  # noqa: E731
    while True:
        page = await backend.history(topic, start, PAGE, PAGE_BYTES)
        inside = [record for record in page.records if before(record)]
        found = [record for record in inside if wanted.fits(record)][:limit]
        limit -= len(found)
        if found:
            yield found
        if limit <= 0 or len(inside) < len(page.records) or page.next >= page.end or not page.records:
            return
        start = page.next
        await asyncio.sleep(0)


async def _ndjson(read: AsyncIterator[list[Record[bytes]]]) -> AsyncIterator[bytes]:
    async for records in read:
        yield b"".join(encode_json(record_as_json(record)) + b"\n" for record in records)


async def _parquet(topic: str, read: AsyncIterator[list[Record[bytes]]]) -> AsyncIterator[bytes]:
    """A Parquet file has its index at the end: it is written to a temporary file first, on threads."""
    with tempfile.TemporaryFile() as file:
        writer = ParquetFile(topic, file)
        async for records in read:
            await asyncio.to_thread(writer.write, records)
        await asyncio.to_thread(writer.close)
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk


class ParquetFile:
    """Records as rows, with the columns that Arrow tables of runnel have."""

    def __init__(self, topic: str, file: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._topic, self._file = topic, file
        self._schema = pa.schema(
            [
                ("topic", pa.string()),
                ("epoch", pa.int64()),
                ("offset", pa.int64()),
                ("sequence", pa.int64()),
                ("time", pa.timestamp("us", tz="UTC")),
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", pa.map_(pa.string(), pa.string())),
            ]
        )
        self._table = pa.Table
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, records: list[Record[bytes]]) -> None:
        """Add these."""
        columns: dict[str, list[Any]] = {
            "topic": [self._topic] * len(records),
            "epoch": [one.epoch for one in records],
            "offset": [one.offset for one in records],
            "sequence": [one.sequence for one in records],
            "time": [one.time for one in records],
            "key": [one.key for one in records],
            "value": [one.value for one in records],
            "headers": [list(one.headers.items()) for one in records],
        }
        self._writer.write_table(self._table.from_pydict(columns, schema=self._schema))

    def close(self) -> None:
        """Write the index, and go back to the beginning."""
        self._writer.close()
        self._file.seek(0)


def _topic(asked: dict[str, list[str]]) -> str:
    return check_name(single_parameter(asked, "topic") or "")


def _start(asked: dict[str, list[str]]) -> Start:
    start = parse_start("from", single_parameter(asked, "from"))
    return "earliest" if start is None else start


def _end(asked: dict[str, list[str]]) -> int | datetime | None:
    """`to`: an offset or a time, which is not included."""
    text = single_parameter(asked, "to")
    end = parse_start("to", text)
    if end is None or isinstance(end, datetime) or (isinstance(end, int) and end >= 0):
        return end
    raise InvalidOption("to", (text or "")[:64], "expected an offset, or a time with its zone")


def _wanted(asked: dict[str, list[str]]) -> Wanted:
    find, key = single_parameter(asked, "find"), single_parameter(asked, "key")
    for name, text in (("find", find), ("key", key)):
        if text is not None and len(text) > MAX_NEEDLE:
            raise InvalidOption(name, f"{text[:64]}…", f"it has more than {MAX_NEEDLE:,} characters")
    return Wanted(find.lower().encode() if find else None, key.encode() if key else None)
