"""Bytes in and out of one connection: gathered, bounded, read from only as long as it reads."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch_format import pack
from runnel.core.errors import LimitExceeded
from runnel.server.memory_budget import MemoryBudget
from runnel.server.native import connection as module
from runnel.server.native.connection import (
    CLOSED_SESSION,
    ConnectionSession,
    Keepalive,
    KeepaliveAction,
    NativeConnection,
)
from runnel.server.options import ServerOptions
from runnel.wire.binary_messages import publish_frame
from runnel.wire.errors import read_error
from runnel.wire.frames import PREFACE, FrameDecoder, FrameKind, frame
from tests.held_time import held_time
from tests.patience import PATIENCE
from tests.server.native_client import Raw, connected, serving, until

HIGH = 1000


class Wire(asyncio.Transport):
    """A transport that takes notes. `stuck`: the peer reads nothing, so all that is written stays in the buffer."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 4711)})
        self.written: list[list[bytes]] = []
        self.unsent = 0
        self.stuck = self.paused = self.closed = self.ended = False
        self.high = 0
        self.protocol: NativeConnection | None = None

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(list(list_of_data))
        if self.stuck:
            was, self.unsent = self.unsent, self.unsent + sum(map(len, list_of_data))
            if was <= self.high < self.unsent and self.protocol is not None:
                self.protocol.pause_writing()

    def read_all(self) -> None:
        """The peer reads everything."""
        was, self.unsent = self.unsent, 0
        if was > self.high and self.protocol is not None:
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    @property
    def frames(self) -> list[tuple[int, int]]:
        """Kind and id of all that was written."""
        decoder = FrameDecoder()
        decoder.feed(b"".join(part for parts in self.written for part in parts))
        return [(kind, id) for kind, _, _, id, _ in decoder.frames()]


class Notes:
    """A session that takes notes of the frames it is handed; `on` says what to do with one of an id."""

    def __init__(self, connection: NativeConnection) -> None:
        self.connection = connection
        self.seen: list[int] = []
        self.lost_count = 0
        self.gone = asyncio.Event()
        self.on: dict[int, Callable[[], object]] = {}
        self.handlers: list[Any] = [self.frame] * 22

    def frame(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        self.seen.append(id)
        if id in self.on:
            self.on[id]()

    def opened(self) -> None: ...

    def lost(self) -> None:
        self.lost_count += 1
        self.gone.set()

    def stranger(self, first: bytes) -> bytes | None:
        return None

    def drain(self, reason: str, retry: float | None) -> None:
        self.connection.close()

    def describe(self) -> dict[str, Any]:
        return {}


class Tap:
    """A source with so many frames to send."""

    def __init__(self, connection: NativeConnection, id: int, frames: int, size: int = 100) -> None:
        self.connection, self.id, self.left, self.size = connection, id, frames, size
        self.queued = False

    def pump(self, room: int) -> bool:
        self.left -= 1
        payload = bytes(self.size)
        self.connection.send_batch(frame(FrameKind.DELIVER, self.id, payload)[:12], payload)
        return self.left > 0


def made(**options: Any) -> tuple[NativeConnection, Wire, Notes]:
    given: dict[str, Any] = {"high_water": HIGH, **options}
    gone: list[NativeConnection] = []
    connection = NativeConnection(ServerOptions(**given), MemoryBudget(), Notes, gone.append)
    wire = Wire()
    wire.protocol = connection
    connection.connection_made(wire)
    connection.greeted()
    receive(connection, PREFACE)
    assert isinstance(connection.session, Notes)
    return connection, wire, connection.session


def receive(connection: NativeConnection, data: bytes) -> None:
    while data:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def pings(*ids: int) -> bytes:
    return b"".join(frame(FrameKind.PING, id) for id in ids)


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_all_that_is_sent_in_a_turn_goes_out_with_one_call_uncopied() -> None:
    connection, wire, _ = made()
    batch = bytes(50_000)

    class Once(Tap):
        def pump(self, room: int) -> bool:
            connection.send_batch(b"head", batch)
            return False

    tap = Once(connection, 3, 1)
    connection.send(pings(1))
    connection.send(pings(2))
    connection.wants(tap)
    await turn()
    (parts,) = wire.written
    assert parts[:3] == [pings(1), pings(2), b"head"]
    assert parts[3] is batch
    connection.abort()


async def test_sources_take_turns_and_send_no_more_than_the_high_water_and_a_frame() -> None:
    connection, wire, _ = made()
    wire.stuck = True
    taps = [Tap(connection, 1, 50), Tap(connection, 2, 50)]
    for tap in taps:
        connection.wants(tap)
    for _ in range(5):
        await turn()
    assert HIGH <= wire.unsent < HIGH + 112
    assert abs(taps[0].left - taps[1].left) <= 1
    assert connection.room == 0
    wire.read_all()
    wire.stuck = False
    while taps[0].left or taps[1].left:
        await turn()
    assert wire.frames.count((FrameKind.DELIVER, 1)) == wire.frames.count((FrameKind.DELIVER, 2)) == 50
    connection.abort()


async def test_who_does_not_read_its_answers_is_not_read_from() -> None:
    connection, wire, notes = made()
    wire.stuck = True
    for id in range(1, 10):
        notes.on[id] = lambda: connection.send(bytes(500))
    receive(connection, pings(*range(1, 10)))
    assert wire.paused
    assert notes.seen == [1, 2, 3, 4, 5]  # twice the high water; the others stay where they are
    await turn()
    assert notes.seen == [1, 2, 3, 4, 5]
    wire.read_all()
    wire.stuck = False
    await turn()
    await turn()
    assert notes.seen == [*range(1, 10)]
    assert not wire.paused
    connection.abort()


async def test_frames_wait_while_the_session_has_a_reason_and_all_reasons_must_go() -> None:
    connection, wire, notes = made()
    notes.on[1] = lambda: [connection.pause(why) for why in ("one", "other")]  # type: ignore[func-returns-value]
    receive(connection, pings(1, 2, 3))
    assert (notes.seen, wire.paused) == ([1], True)
    connection.resume("one")
    await turn()
    assert notes.seen == [1]
    connection.resume("other")
    await turn()
    assert (notes.seen, wire.paused) == ([1, 2, 3], False)
    connection.abort()


async def test_a_rest_lets_others_run_before_the_next_frame() -> None:
    connection, wire, notes = made()
    notes.on[1] = connection.rest
    receive(connection, pings(1, 2))
    receive(connection, pings(3))
    assert (notes.seen, wire.paused) == ([1], False)
    await turn()
    assert notes.seen == [1, 2, 3]
    connection.abort()


async def test_a_failure_ends_the_connection_with_an_error_and_releases_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LINGER", 0.01)
    connection, wire, notes = made()
    notes.on[2] = lambda: 1 / 0
    receive(connection, pings(1, 2, 3))
    assert notes.seen == [1, 2]
    assert wire.frames == [(FrameKind.ERROR, 0)]
    assert wire.ended
    receive(connection, pings(4) * 10_000)  # thrown away: were it left unread, the peer would never see the error
    assert notes.seen == [1, 2]
    assert connection._decoder.held <= 256 << 10
    await notes.gone.wait()
    assert notes.lost_count == 1
    assert "ZeroDivisionError" in caplog.text


async def test_a_source_that_fails_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    connection, wire, _ = made()
    tap = Tap(connection, 1, 1)
    tap.pump = lambda room: 1 // 0 == 0  # type: ignore[method-assign]
    connection.wants(tap)
    await turn()
    assert wire.frames == [(FrameKind.ERROR, 0)]
    connection.abort()


async def test_when_the_peer_is_gone_nothing_is_written_any_more() -> None:
    connection, wire, notes = made()
    connection.wants(Tap(connection, 1, 5))
    connection.send(pings(1))
    connection.connection_lost(None)
    connection.wants(Tap(connection, 2, 5))
    connection.send(pings(2))
    await turn()
    assert wire.written == []
    assert notes.lost_count == 1


async def test_a_quiet_client_that_answers_pings_stays() -> None:
    async with serving(ping=2.0, ping_timeout=1.0) as server:
        with held_time() as later:
            async with connected(server) as raw:
                (peer,) = server._serving.connections  # type: ignore[union-attr]
                assert isinstance(peer, NativeConnection)
                for _ in range(3):
                    await later(2)
                    while FrameKind.PING not in [kind for kind, *_ in await frames_of(raw)]:
                        pass
                    await later(0.9)
                    raw.send(frame(FrameKind.PONG, 0))
                    while peer.heard < peer.loop.time():  # noqa: ASYNC110 - it tells nobody
                        await asyncio.sleep(0)
                await later(1.9)
                assert server.connections == 1


async def frames_of(raw: Any) -> list[Any]:
    raw.decoder.feed(await raw.reader.read(1 << 16))
    return list(raw.decoder.frames())


async def test_a_client_that_answers_no_ping_is_gone_and_its_leases_with_it() -> None:
    async with serving(ping=2.0, ping_timeout=1.0) as server:
        with held_time() as later:
            async with connected(server) as frozen:
                member = frozen.subscribe("t", group="g", ack_wait=3600.0)
                await frozen.subscribed(member)
                await frozen.published(frozen.publish("t", b"work"))
                await frozen.grant(member)
                await later(2)
                await later(0.9)
                assert server.connections == 1
                await later(0.2)
                await server._serving.connections.emptied()  # type: ignore[union-attr]
            (group,) = server.broker.statistics().groups
            assert (group.members, group.in_flight, group.lag) == ((), 0, 1)


async def test_a_frozen_reader_with_a_full_buffer_is_gone_too() -> None:
    async with serving(ping=2.0, ping_timeout=1.0, high_water=100_000) as server:
        with held_time() as later:
            async with connected(server) as frozen:
                id = frozen.subscribe("t", credit=1 << 30)
                await frozen.subscribed(id)
                for _ in range(100):
                    await server.broker.topic("t").publish_many([bytes(1000)] * 100)
                (peer,) = server._serving.connections  # type: ignore[union-attr]
                while peer.describe()["unsent_bytes"] < 100_000:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0)
                while server.connections:
                    await later(1)


async def test_a_client_that_answers_pings_and_reads_nothing_is_gone_too() -> None:
    with held_time() as later:
        connection, wire, _ = made(ping=2.0, ping_timeout=1.0)
        wire.stuck = True
        connection.send(bytes(2 * HIGH))
        await later(0)
        for _ in range(4):
            assert not wire.closed
            receive(connection, frame(FrameKind.PONG, 0))
            await later(0.75)
        assert wire.closed


async def test_what_a_client_has_not_read_counts_until_it_reads_or_goes() -> None:
    connection, wire, _ = made()
    memory: MemoryBudget = connection._memory
    wire.stuck = True
    connection.send(bytes(2 * HIGH))
    await turn()
    assert memory.held == 2 * HIGH
    wire.read_all()
    assert memory.held == 0
    connection.send(bytes(2 * HIGH))
    await turn()
    memory.limit = HIGH
    memory.hold(connection, 2 * HIGH + 1)  # no last word would get past what it has not read
    assert (wire.closed, memory.held) == (True, 0)


async def test_the_hello_time_is_over_for_a_silent_client() -> None:
    async with serving(hello_timeout=0.05) as server, connected(server, hello=False) as raw:
        kind, _, _, _, payload = await raw.next(FrameKind.ERROR)
        assert isinstance(read_error(payload), LimitExceeded)
        await raw.eof()
        assert kind == FrameKind.ERROR


@pytest.mark.parametrize("sent", [3, 5_000], ids=["half a header", "half a payload"])
async def test_a_frame_that_never_ends_holds_a_connection_no_longer_than_the_frame_time(sent: int) -> None:
    async with serving(frame_timeout=0.2) as server, connected(server) as raw:
        endless = b"".join(publish_frame(raw.new_id(), b"t", pack([bytes(100_000)])))
        raw.send(endless[:sent])
        drip = asyncio.ensure_future(dripping(raw, endless[sent:]))
        error = await raw.error()
        assert isinstance(error, LimitExceeded)
        assert (error.limit, error.allowed) == ("frame_timeout", 0.2)
        drip.cancel()
        await raw.eof()


async def dripping(raw: Raw, rest: bytes) -> None:
    """Send it byte by byte: it is never silent."""
    for at in range(len(rest)):
        raw.send(rest[at : at + 1])
        await asyncio.sleep(0.01)


async def test_frames_that_come_in_halves_are_each_given_their_time() -> None:
    async with serving(frame_timeout=0.3) as server, connected(server) as raw:
        frames = [b"".join(publish_frame(raw.new_id(), b"t", pack([bytes(50)]))) for _ in range(12)]
        stream = b"".join(frames)
        size = len(frames[0])
        raw.send(stream[: size // 2])
        with held_time() as later:
            for at in range(11):  # there is always half a frame, for longer than one may take
                await later(0.05)
                raw.send(stream[size // 2 + at * size : size // 2 + (at + 1) * size])
                await raw.next(FrameKind.PUBLISHED, id=at + 1)
            assert server.connections == 1


async def test_a_peer_without_a_reader_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANGUP_CHECK", 60)
    connection, _, _ = made(frame_timeout=0.1)
    receive(connection, frame(FrameKind.PING, 0, bytes(10))[:-1])
    connection.pause("something")
    for _ in range(2):
        await asyncio.sleep(0.1)
        connection.resume("something")
        connection.pause("something else")  # before anything was read
        await asyncio.sleep(0.1)
        connection.pause("something")
        connection.resume("something else")
    assert not connection.closing
    await asyncio.sleep(0.05)
    connection.resume("something")
    since = connection.loop.time()
    await until(lambda: connection.closing)  # now its time passes, and all of it
    assert connection.loop.time() - since >= 0.09


async def test_a_slow_peer_reads_our_last_words_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER", 0.02)
    monkeypatch.setattr(module, "DRAIN_TIMEOUT", 0.02)
    connection, wire, _ = made()
    wire.stuck = True
    connection.send(bytes(100))
    with held_time() as later:
        connection.close(b"bye")
        while wire.unsent > 2:  # it reads a little at a time, for longer than one that reads nothing has
            await later(0.01)
            assert not wire.closed
            wire.unsent -= 2
        for _ in range(2):
            await later(0.02)
        assert wire.closed


async def test_those_with_answers_send_one_after_the_other_as_there_is_room() -> None:
    connection, wire, _ = made()
    wire.stuck = True
    connection.send(bytes(2 * HIGH))
    await turn()

    async def answer() -> None:
        await connection.writable()
        connection.send(bytes(2 * HIGH))

    answers = [asyncio.create_task(answer()) for _ in range(3)]
    given_up = asyncio.create_task(connection.writable())
    await turn()
    given_up.cancel()
    for done in range(4):
        await turn()
        await turn()
        assert sum(one.done() for one in answers) == done
        assert wire.unsent == 2 * HIGH
        wire.read_all()
        await turn()


async def test_one_that_had_its_turn_and_sends_later_delays_no_other() -> None:
    connection, wire, _ = made()
    wire.stuck = True
    connection.send(bytes(2 * HIGH))
    await turn()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as waiting:
        for _ in range(3):
            waiting.create_task(connection.writable())
        await turn()
        wire.read_all()


# -- The session of a connection that is gone: it takes every call and does nothing.


def test_the_null_session_takes_every_call_and_does_nothing() -> None:
    session: ConnectionSession = CLOSED_SESSION
    session.opened()
    session.lost()
    session.drain("closing time", None)
    assert session.stranger(b"GET ") is None
    assert session.describe() == {}
    assert session.handlers == []


# -- Silence, a ping, and the end of patience; time is an argument -------------------------------------------


def test_a_peer_that_talks_is_left_alone() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.next == 15
    assert keepalive.look(15, heard=14) is KeepaliveAction.ALIVE
    assert keepalive.next == 29  # fifteen seconds after it was heard


def test_a_silent_peer_is_asked_and_given_up_on_when_it_does_not_answer() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.look(15, heard=0) is KeepaliveAction.ASK
    assert keepalive.next == 25
    assert keepalive.look(25, heard=0) is KeepaliveAction.DEAD


def test_a_peer_that_answers_at_the_last_moment_is_alive() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.look(15, heard=0) is KeepaliveAction.ASK
    assert keepalive.look(25, heard=24.9) is KeepaliveAction.ALIVE
    assert keepalive.next == 24.9 + 15


def test_looking_too_early_kills_no_process() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    assert keepalive.look(15, heard=0) is KeepaliveAction.ASK
    assert keepalive.look(20, heard=0) is KeepaliveAction.ALIVE
    assert keepalive.next == 25


def test_a_request_without_a_responder_is_repeated_and_never_given_up() -> None:
    keepalive = Keepalive(15, 10, now=0.0)
    for now in (15, 25, 35, 45):
        assert keepalive.look(now, heard=0, read_paused=True) is KeepaliveAction.ASK
    assert keepalive.look(55, heard=0) is KeepaliveAction.DEAD  # listened to again: the last ping was not answered


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_peer_is_gone_ping_and_timeout_after_it_was_last_heard(said: list[float]) -> None:
    keepalive, heard, now = Keepalive(15, 10, now=0.0), 0.0, 0.0
    while True:
        now = keepalive.next
        heard = max([heard, *(moment for moment in said if moment <= now)])
        if keepalive.look(now, heard) is KeepaliveAction.DEAD:
            break
        assert keepalive.next > now
    assert now == pytest.approx(heard + 15 + 10)
