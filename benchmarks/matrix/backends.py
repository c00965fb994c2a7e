"""The backends that operations are measured on, each as a broker with the calls of `runnel.Broker`.

The blocking API, JSON lines and HTTP are wrapped, so that every operation is written once. What a backend does not have
raises `Absent`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

import runnel
import runnel.blocking
from benchmarks.matrix.host import Host
from runnel.server.http.options import event_options, header_of
from runnel.wire.json_commands import PUBLISH_OPTIONS, SUBSCRIBE_OPTIONS

Fill = Callable[[str, int, int], Awaitable[None]]


class Absent(Exception):
    """A backend that does not have an operation, or does not take an option."""


@dataclass(slots=True)
class Backend:
    """A broker, as operations use it.

    `native` is the same broker without a wrapper; `fill` makes things beside it, `pids` are the processes, beside this
    one, whose CPU counts.
    """

    broker: Any
    native: Any
    fill: Fill | None = None
    pids: Sequence[int] = ()

    def needs_tasks(self, *, several: bool = True) -> None:
        """Refuse a backend whose calls block; with `several`, also one that has one connection for all callers."""
        if isinstance(self.broker, Blocking) or (several and self.broker is not self.native):
            raise Absent("one call at a time")

    @asynccontextmanager
    async def beside(self, work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
        """Run `work` until the block ends; where calls block, in a thread, until the broker is closed."""
        if isinstance(self.broker, Blocking):
            threading.Thread(target=_until_closed, args=(work,), daemon=True).start()
            yield
            return
        task = asyncio.ensure_future(work)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _until_closed(work: Coroutine[Any, Any, Any]) -> None:
    try:
        asyncio.run(work)
    except runnel.RunnelError:
        pass


# -- the blocking API -------------------------------------------------------------------------------------------


class Blocking:
    """A handle of `runnel.blocking` whose methods are awaited where those of `runnel` are."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._twin = getattr(runnel, type(inner).__name__)

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._inner, name)
        except AttributeError as error:
            raise Absent(str(error)) from None
        if not callable(found):
            return found
        made = _awaited(found) if _is_awaited(getattr(self._twin, name, None)) else _direct(found)
        setattr(self, name, made)
        return made

    async def __aenter__(self) -> Any:
        return _wrapped(self._inner.__enter__())

    async def __aexit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._inner:
            yield _wrapped(item)

    def __len__(self) -> int:
        return len(self._inner)


def _is_awaited(method: Any) -> bool:
    return inspect.iscoroutinefunction(method) or "Awaitable" in str(getattr(method, "__annotations__", {}))


def _wrapped(made: Any) -> Any:
    return Blocking(made) if type(made).__module__.startswith("runnel.blocking") else made


def _awaited(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any, **options: Any) -> Any:
        return method(*map(_bare, arguments), **options)

    return call


def _direct(method: Callable[..., Any]) -> Callable[..., Any]:
    if method.__name__ == "batches":
        return lambda **options: _following(method(**options))
    return lambda *arguments, **options: _wrapped(method(*map(_bare, arguments), **options))


async def _following(items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield _wrapped(item)


def _bare(argument: Any) -> Any:
    return argument._inner if isinstance(argument, Blocking) else argument


# -- JSON lines -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stream:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @staticmethod
    async def to(port: int) -> _Stream:
        return _Stream(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))


REFUSED = ("not_supported", "invalid_option")  # codes of errors


class Lines:
    """A connection that speaks JSON lines."""

    def __init__(self, port: int, stream: _Stream) -> None:
        self.port, self._stream = port, stream

    async def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a command."""
        self._stream.writer.write(msgspec.json.encode(command) + b"\n")
        answer: dict[str, Any] = msgspec.json.decode(await self._stream.reader.readline())
        if answer["event"] == "error":
            raise (Absent if answer["code"] in REFUSED else RuntimeError)(answer["message"])
        return answer

    def topic(self, name: str, **options: Any) -> LinesTopic:
        if options:
            raise Absent("JSON lines declare no topics")
        return LinesTopic(self, name)

    async def publish(self, topic: str, value: bytes, **options: Any) -> None:
        await self.topic(topic).publish(value, **options)

    async def topics(self) -> Any:
        return (await self.ask({"command": "TOPICS"}))["topics"]

    async def info(self) -> Any:
        return await self.ask({"command": "INFO"})

    def subscribe(self, pattern: str, **options: Any) -> AbstractAsyncContextManager[LinesSubscription]:
        if unknown := options.keys() - {*SUBSCRIBE_OPTIONS}:
            raise Absent(f"JSON lines do not take {', '.join(unknown)}")
        if "start" in options:
            options["from"] = options.pop("start")
        return self._subscribed({"command": "SUB", "topic": pattern, **options})

    @asynccontextmanager
    async def _subscribed(self, command: dict[str, Any]) -> AsyncIterator[LinesSubscription]:
        stream = await _Stream.to(self.port)
        try:
            await Lines(self.port, stream).ask(command)
            yield LinesSubscription(stream)
            stream.writer.write(b'{"command": "QUIT"}\n')
            await stream.reader.read(-1)  # until the server has closed it, and ended the subscription
        finally:
            stream.writer.close()
            await stream.writer.wait_closed()

    def __getattr__(self, name: str) -> Any:
        raise Absent(f"JSON lines have no {name}")


class LinesTopic:
    """PUB of one topic."""

    def __init__(self, lines: Lines, name: str) -> None:
        self._lines, self.name = lines, name

    async def publish(self, value: bytes, **options: Any) -> None:
        if unknown := options.keys() - {*PUBLISH_OPTIONS}:
            raise Absent(f"JSON lines do not take {', '.join(unknown)}")
        await self._lines.ask({"command": "PUB", "topic": self.name, "payload": value.decode(), **options})

    def __getattr__(self, name: str) -> Any:
        raise Absent(f"JSON lines have no {name}")


class LinesSubscription:
    """SUB on a connection of its own."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[Any]:
        decode, readline = msgspec.json.decode, self._stream.reader.readline
        while line := await readline():
            told = decode(line)
            if told["event"] == "message":
                yield LinesDelivery(told, self._stream.writer) if "delivery" in told else told

    def __getattr__(self, name: str) -> Any:
        raise Absent(f"JSON lines have no {name}")


class LinesDelivery:
    """A message of a group. What is asked of it is answered between messages, and not waited for."""

    def __init__(self, told: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self._writer, self._delivery, self.attempt = writer, told["delivery"], told["attempt"]

    async def ack(self, *, durable: bool = False) -> None:
        if durable:
            raise Absent("the server is in memory")
        self._say("ACK", {})

    async def nack(self, delay: float, **options: Any) -> None:
        self._say("NACK", {"delay": delay, **options})

    async def reject(self, reason: str) -> None:
        self._say("REJECT", {"reason": reason})

    async def extend(self, seconds: float) -> None:
        self._say("EXTEND", {"seconds": seconds})
        await self._writer.drain()

    def _say(self, verb: str, options: Mapping[str, Any]) -> None:
        self._writer.write(msgspec.json.encode({"command": verb, "delivery": self._delivery, **options}) + b"\n")


# -- HTTP -------------------------------------------------------------------------------------------------------


class Http:
    """A connection that speaks HTTP, kept open."""

    def __init__(self, port: int, stream: _Stream) -> None:
        self.port, self._stream = port, stream

    async def ask(self, head: str, body: bytes = b"") -> bytes:
        """The body of the answer to a request."""
        text = f"{head}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._stream.writer.write(text.encode() + body)
        answer = await self._stream.reader.readuntil(b"\r\n\r\n")
        size = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await self._stream.reader.readexactly(size)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{answer!r} {content!r}")
        return content

    def topic(self, name: str, **options: Any) -> HttpTopic:
        if options:
            raise Absent("HTTP declares no topics")
        return HttpTopic(self, name)

    async def publish(self, topic: str, value: bytes, **options: Any) -> None:
        await self.topic(topic).publish(value, **options)

    async def topics(self) -> Any:
        return json.loads(await self.ask("GET /topics HTTP/1.1"))

    async def statistics(self) -> Any:
        return await self.ask("GET /metrics HTTP/1.1")

    def subscribe(self, pattern: str, **options: Any) -> AbstractAsyncContextManager[HttpSubscription]:
        if unknown := options.keys() - {"start", *event_options()}:
            raise Absent(f"GET /events does not take {', '.join(unknown)}")
        if options.get("policy") == "block":
            raise Absent("GET /events refuses the policy block")
        spelled = {name: str(value).lower() for name, value in options.items()}
        return self._subscribed(urlencode({"pattern": pattern, **spelled}))

    @asynccontextmanager
    async def _subscribed(self, query: str) -> AsyncIterator[HttpSubscription]:
        stream = await _Stream.to(self.port)
        try:
            stream.writer.write(f"GET /events?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = await stream.reader.readuntil(b"event: ready")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(repr(head))
            await stream.reader.readuntil(b"\n\n")
            yield HttpSubscription(stream)
        finally:
            stream.writer.close()
            await stream.writer.wait_closed()

    def __getattr__(self, name: str) -> Any:
        raise Absent(f"HTTP has no {name}")


class HttpTopic:
    """POST to one topic."""

    def __init__(self, http: Http, name: str) -> None:
        self._http, self._head = http, f"POST /topics/{name} HTTP/1.1"

    async def publish(self, value: bytes, **options: Any) -> None:
        await self._http.ask(self._head + _headers(options), value)

    async def publish_many(self, values: Sequence[bytes], **options: Any) -> None:
        head = f"{self._head}\r\nContent-Type: application/x-ndjson"
        await self._http.ask(head + _headers(options), b"\n".join(values))

    def __getattr__(self, name: str) -> Any:
        raise Absent(f"HTTP has no {name}")


def _headers(options: Mapping[str, Any]) -> str:
    if "keys" in options:
        raise Absent("HTTP has one key for all lines")
    of_record = [f"Runnel-Header-{name}: {value}" for name, value in options.get("headers", {}).items()]
    others = [f"{header_of(name)}: {value}" for name, value in options.items() if name != "headers"]
    return "".join(f"\r\n{line}" for line in of_record + others)


class HttpSubscription:
    """GET /events on a connection of its own."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[Any]:
        readline = self._stream.reader.readline
        while line := await readline():
            if line.startswith(b'data: {"topic"'):
                yield line

    def __getattr__(self, name: str) -> Any:
        raise Absent(f"HTTP has no {name}")


# -- all of them ------------------------------------------------------------------------------------------------

Opened = Callable[[Path, Host, Mapping[str, Any]], AbstractAsyncContextManager[Backend]]


@asynccontextmanager
async def _memory(folder: Path, host: Host, options: Mapping[str, Any]) -> AsyncIterator[Backend]:
    _no_options(options)
    async with runnel.open() as broker:
        yield Backend(broker, broker, _filling(broker))


@asynccontextmanager
async def _folder(folder: Path, host: Host, options: Mapping[str, Any]) -> AsyncIterator[Backend]:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        async with runnel.open(made, **options) as broker:
            yield Backend(broker, broker, _filling(broker))


@asynccontextmanager
async def _blocking(folder: Path, host: Host, options: Mapping[str, Any]) -> AsyncIterator[Backend]:
    _no_options(options)
    # Elsewhere: to end its event loop it runs it, and here one runs already.
    broker = await asyncio.to_thread(runnel.blocking.open().__enter__)
    try:
        wrapped = Blocking(broker)
        yield Backend(wrapped, wrapped)
    finally:
        await asyncio.to_thread(broker.__exit__, None, None, None)


@asynccontextmanager
async def _server(folder: Path, host: Host, options: Mapping[str, Any]) -> AsyncIterator[Backend]:
    _no_options(options)
    async with host.served() as served, runnel.open(served.url) as broker:
        yield Backend(broker, broker, served.fill, (host.pid,))


def _spoken(listener: str, kind: Callable[[int, _Stream], Any]) -> Opened:
    @asynccontextmanager
    async def opened(folder: Path, host: Host, options: Mapping[str, Any]) -> AsyncIterator[Backend]:
        _no_options(options)
        async with host.served(listener) as served, runnel.open(served.url) as broker:
            stream = await _Stream.to(served.ports[listener])
            try:
                yield Backend(kind(served.ports[listener], stream), broker, served.fill, (host.pid,))
            finally:
                stream.writer.close()
                await stream.writer.wait_closed()

    return opened


def _no_options(options: Mapping[str, Any]) -> None:
    if options:
        raise Absent("only a folder takes these")


def _filling(broker: runnel.Broker) -> Fill:
    from benchmarks.matrix.growth import THINGS

    async def fill(thing: str, first: int, end: int) -> None:
        await THINGS[thing].fill(broker, first, end)

    return fill


BACKENDS: dict[str, Opened] = {
    "memory": _memory,
    "folder": _folder,
    "TCP": _server,
    "blocking": _blocking,
    "JSON lines": _spoken("json", Lines),
    "HTTP": _spoken("http", Http),
}


def backend(
    name: str, folder: Path, host: Host, options: Mapping[str, Any] | None = None
) -> AbstractAsyncContextManager[Backend]:
    """A new broker, with nothing in it."""
    return BACKENDS[name](folder, host, options or {})
