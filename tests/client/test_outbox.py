"""The outbox: publishes without an answer yet, against a server that loses connections, refuses and answers late."""

from collections import deque
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runnel.client import outbox as module
from runnel.client.outbox import MAX_TRIES, OVERHEAD, WINDOW, Outbox, OutgoingBatch, Route, batch_cost
from runnel.core.batch_format import unpack
from runnel.core.deduplication import MAX_PRODUCER_SECONDS, MessageIdWindow, ProducerTable
from runnel.core.errors import (
    OutcomeUnknown,
    RunnelError,
    SequenceForgotten,
    SequenceGap,
    TooLarge,
    TopicConflict,
    ValidationFailed,
)
from runnel.core.position import Position
from runnel.wire.binary_messages import read_publish
from runnel.wire.frames import FROM_CLIENT, FrameDecoder, FrameKind
from runnel.wire.msgpack_messages import PublishDetails, encode_message

TOPICS = ("a", "b", "c", "d")  # the first and the last share a lane
ROUTES = {topic: Route(topic, topic.encode(), TOPICS.index(topic) % 3) for topic in TOPICS}


class Waiter:
    """Somebody who waits, or has stopped to."""

    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> bool:
        return self.is_done


class Post:
    """An outbox, the ids of one connection, and the frames that came out."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.producers = count(1)
        self.outbox = Outbox(limit, lambda: next(self.producers))
        self.ids = count(1)
        self.now = 1_000.0

    def gather(self, topic: str, value: bytes, waiter: Any = None) -> OutgoingBatch:
        outgoing, _ = self.outbox.gathering(ROUTES[topic])
        index = outgoing.add(value, None, len(value) + OVERHEAD)
        self.outbox.bytes += len(value) + OVERHEAD
        if waiter is not None:
            outgoing.waiters.append([index, waiter])
        return outgoing

    def add(self, topic: str, values: list[bytes], waiter: Any = None, message_id: str | None = None) -> OutgoingBatch:
        said = None if message_id is None else encode_message(PublishDetails(message_id=message_id))
        numbered = message_id is None
        size = batch_cost(values, None)
        outgoing = OutgoingBatch(ROUTES[topic], list(values), size=size, whole=True, numbered=numbered, said=said)
        if waiter is not None:
            outgoing.waiters.append([0, waiter])
        self.outbox.add(outgoing)
        return outgoing

    def take(self) -> list[tuple[int, int, bytes, bytes]]:
        """Kind, id, topic and batch of the frames that may be sent now."""
        decoder = FrameDecoder(kinds=FROM_CLIENT)
        frames = []
        for piece in self.outbox.take(lambda: next(self.ids), self.now):
            decoder.feed(piece)
            for kind, flags, extra, id, payload in decoder.frames():
                if kind == FrameKind.PUBLISH:
                    topic, _, batch = read_publish(flags, extra, payload)
                    frames.append((kind, id, topic, batch))
                else:
                    frames.append((kind, id, "", b""))
        return frames  # type: ignore[return-value]

    def take_all(self) -> list[tuple[int, int, bytes, bytes]]:
        """The frames that are sent while the server stores all that it gets."""
        every: list[tuple[int, int, bytes, bytes]] = []
        while frames := self.take():
            for _, id, _, _ in frames:
                self.outbox.published(id, 1, 0)
            every += frames
        return every


def values_of(frames: list[tuple[int, int, bytes, bytes]]) -> list[tuple[bytes, ...]]:
    return [unpack(batch).values for _, _, _, batch in frames]


def numbers_of(frames: list[tuple[int, int, bytes, bytes]]) -> list[tuple[int, int]]:
    headers = [unpack(batch).header for _, _, _, batch in frames]
    return [(header.producer, header.producer_sequence) for header in headers]


def introduced(topic: str = "a") -> Post:
    """An outbox with a lane that the server knows: one record was stored."""
    post = Post()
    post.gather(topic, b"first")
    ((_, id, _, _),) = post.take()
    post.outbox.published(id, 1, 0)
    return post


# -- one thing at a time ----------------------------------------------------------------------------------------


def test_what_is_published_before_it_is_sent_travels_in_one_frame() -> None:
    post = introduced()
    for value in (b"1", b"2", b"3"):
        post.gather("a", value)
    assert values_of(post.take()) == [(b"1", b"2", b"3")]


def test_a_batch_of_its_own_keeps_its_place_among_single_records() -> None:
    post = introduced()
    post.gather("a", b"1")
    post.add("a", [b"2", b"3"])
    post.gather("a", b"4")
    assert values_of(post.take()) == [(b"1",), (b"2", b"3"), (b"4",)]


def test_only_what_a_lane_numbers_waits_until_the_server_knows_the_lane() -> None:
    post = Post()
    for name in ("x", "y"):
        post.add("a", [name.encode()], message_id=name)
    assert values_of(post.take()) == [(b"x",), (b"y",)]
    post.gather("a", b"1")
    assert values_of(post.take()) == [(b"1",)]  # nor does it wait for those, whose answers may take long
    post.gather("a", b"2")
    post.add("a", [b"z"], message_id="z")
    assert post.take() == []


def test_another_way_to_the_same_topic_keeps_its_place_too() -> None:
    post = introduced()
    first = post.gather("a", b"1")
    other, is_new = post.outbox.gathering(ROUTES["a"]._replace(said=b"\x80"))
    assert is_new
    assert first.cap == 0  # a handle that remembers it goes the long way, and finds the new one
    other.add(b"2", None, 1)
    post.gather("a", b"3")
    assert values_of(post.take()) == [(b"1",), (b"2",), (b"3",)]


def test_records_are_numbered_one_after_the_other() -> None:
    post = introduced()
    post.add("a", [b"1", b"2"])
    post.add("a", [b"3"])
    post.add("a", [b"4"], message_id="x")
    post.add("a", [b"5"])
    assert numbers_of(post.take()) == [(1, 1), (1, 3), (0, 0), (1, 4)]


def test_a_lane_sends_no_more_than_the_server_remembers() -> None:
    post = introduced()
    for number in range(WINDOW + 3):
        post.add("a", [b"%d" % number])
    frames = post.take()
    assert len(frames) == WINDOW
    assert post.take() == []
    post.outbox.published(frames[0][1], 1, 1)
    assert len(post.take()) == 1


def test_a_lane_that_the_server_does_not_know_sends_one_frame_first() -> None:
    post = Post()
    post.add("a", [b"1"])
    post.add("a", [b"2"])
    ((_, id, _, _),) = post.take()
    post.outbox.published(id, 1, 0)
    assert values_of(post.take()) == [(b"2",)]


def test_after_a_lost_connection_the_same_bytes_are_sent_again_first() -> None:
    post = introduced()
    post.add("a", [b"1"])
    post.add("a", [b"2"])
    before = post.take()
    post.gather("a", b"3")
    post.outbox.lost()
    again = post.take_all()
    assert [batch for *_, batch in again[:2]] == [batch for *_, batch in before]
    assert values_of(again)[2:] == [(b"3",)]
    assert {id for _, id, _, _ in again}.isdisjoint(id for _, id, _, _ in before)


def test_what_was_refused_behind_another_keeps_its_place_when_the_connection_is_lost() -> None:
    post = introduced()
    for value in (b"1", b"2", b"3"):
        post.add("a", [value])
    _, second, _ = (id for _, id, _, _ in post.take())
    post.outbox.refused(second, SequenceGap(1, 1, 2))
    post.outbox.lost()
    frames = post.take_all()
    assert values_of(frames) == [(b"1",), (b"2",), (b"3",)]
    assert numbers_of(frames) == [(1, 1), (1, 2), (1, 3)]


def test_answers_of_an_old_connection_are_dropped() -> None:
    post = introduced()
    post.add("a", [b"1"])
    ((_, id, _, _),) = post.take()
    post.outbox.lost()
    assert post.outbox.published(id, 1, 1) is None
    assert post.outbox.refused(id, TopicConflict("a", "x", 1, 2)) is None


def test_what_was_refused_behind_another_is_numbered_again_once_all_is_answered() -> None:
    post = introduced()
    for value in (b"1", b"2", b"3"):
        post.add("a", [value])
    first, second, third = (id for _, id, _, _ in post.take())
    refused = post.outbox.refused(first, TopicConflict("a", "x", 1, 2))
    assert refused is not None
    assert post.outbox.refused(second, SequenceGap(1, 1, 2)) is None
    post.add("a", [b"4"])
    assert post.take() == []  # what is under way may still be stored, or not
    assert post.outbox.refused(third, SequenceGap(1, 1, 3)) is None
    frames = post.take()
    assert values_of(frames) == [(b"2",), (b"3",), (b"4",)]
    assert numbers_of(frames) == [(1, 1), (1, 2), (1, 3)]


def test_a_number_that_may_still_be_on_an_old_connection_is_not_used_again() -> None:
    post = introduced()
    post.add("a", [b"1"])
    post.add("a", [b"2"])
    post.take()
    post.outbox.lost()
    ((_, first, _, _),) = post.take()
    post.outbox.refused(first, TopicConflict("a", "x", 1, 2))
    ((_, second, _, _),) = post.take()
    post.outbox.refused(second, SequenceGap(1, 1, 2))
    frames = post.take()
    assert values_of(frames) == [(b"2",)]
    assert numbers_of(frames) == [(2, 0)]


def test_a_server_that_may_have_forgotten_the_lane_gets_one_frame_first() -> None:
    post, waiters = introduced(), [Waiter(), Waiter()]
    for number, waiter in enumerate(waiters):
        post.gather("a", b"%d" % number, waiter)
    post.outbox.lost()
    post.add("a", [b"behind"])
    ((_, id, _, batch),) = post.take()  # with both, the server could take the second, and then the halves of the first
    assert unpack(batch).values == (b"0", b"1")
    assert post.outbox.refused(id, ValidationFailed("a", "T", "f", "no")) is None
    assert values_of(post.take_all()) == [(b"0",), (b"1",), (b"behind",)]


def test_a_number_is_not_used_again_though_the_server_asks_for_it_if_it_was_stored() -> None:
    post = introduced()
    post.add("a", [b"1"])
    post.add("a", [b"2"])
    first, second = (id for _, id, _, _ in post.take())
    post.outbox.refused(second, SequenceGap(1, 1, 2))
    post.outbox.published(first, 1, 1)
    assert numbers_of(post.take()) == [(1, 2)]


def test_a_server_that_never_takes_what_it_asked_for_is_not_asked_for_ever() -> None:
    post = introduced()
    post.add("a", [b"1"])
    for _ in range(1 + MAX_TRIES):
        ((_, id, _, _),) = post.take()
        assert post.outbox.refused(id, SequenceGap(1, 7, 8)) is None
    ((_, id, _, _),) = post.take()
    assert post.outbox.refused(id, SequenceGap(1, 7, 8)) is not None
    assert post.outbox.is_empty


def test_a_lane_whose_numbers_the_server_forgot_begins_anew() -> None:
    post = introduced()
    post.add("a", [b"1"])
    ((_, id, _, _),) = post.take()
    assert post.outbox.refused(id, SequenceForgotten(1, 1, 5)) is not None
    post.add("a", [b"2"])
    assert numbers_of(post.take()) == [(2, 0)]


def test_of_many_gathered_records_only_the_wrong_one_is_refused() -> None:
    post, waiters = introduced(), [Waiter() for _ in range(5)]
    for number, waiter in enumerate(waiters):
        post.gather("a", b"%d" % number, waiter)
    stored: list[bytes] = []
    refused: list[Any] = []
    while frames := post.take():
        for (_, id, _, _), values in zip(frames, values_of(frames), strict=True):
            if b"3" not in values:
                outgoing = post.outbox.published(id, 1, 1 + len(stored))
                assert outgoing is not None
                stored += values
            elif (gone := post.outbox.refused(id, ValidationFailed("a", "T", "f", "no"))) is not None:
                refused += [waiter for _, waiter in gone.waiters]
    assert stored == [b"0", b"1", b"2", b"4"]
    assert refused == [waiters[3]]
    assert post.outbox.bytes == 0


def test_a_batch_that_is_refused_is_refused_as_a_whole() -> None:
    post = introduced()
    post.add("a", [b"1", b"2"], waiter := Waiter())
    ((_, id, _, _),) = post.take()
    gone = post.outbox.refused(id, TooLarge("a batch", 2, "buffer", 1))
    assert gone is not None
    assert gone.waiters == [[0, waiter]]


def test_calls_without_a_waiter_are_not_sent_at_all() -> None:
    post, waiters = introduced(), [Waiter() for _ in range(3)]
    outgoing, *_ = [post.gather("a", b"%d" % number, waiter) for number, waiter in enumerate(waiters)]
    waiters[1].is_done = True
    assert post.outbox.give_up(outgoing, waiters[1]) == 0
    assert outgoing.waiters == [[0, waiters[0]], [1, waiters[2]]]
    assert post.outbox.bytes == 2 * (1 + OVERHEAD)
    whole = post.add("a", [b"x", b"y"], gone := Waiter())
    gone.is_done = True
    post.outbox.give_up(whole, gone)
    assert values_of(post.take()) == [(b"0", b"2")]


def test_a_publish_under_way_can_be_cancelled_if_it_is_alone_in_its_frame() -> None:
    post, waiters = introduced(), [Waiter(), Waiter()]
    outgoing, *_ = [post.gather("a", b"%d" % number, waiter) for number, waiter in enumerate(waiters)]
    ((_, id, _, _),) = post.take()
    waiters[0].is_done = True
    assert post.outbox.give_up(outgoing, waiters[0]) == 0
    waiters[1].is_done = True
    assert post.outbox.give_up(outgoing, waiters[1]) == id
    post.outbox.lost()
    # Nobody knows whether its number is taken: it is sent again, and cancelled again.
    assert [kind for kind, *_ in post.take()] == [FrameKind.PUBLISH, FrameKind.CANCEL]


def test_a_publish_without_waiting_is_never_cancelled() -> None:
    post = introduced()
    outgoing = post.gather("a", b"nowait")
    post.gather("a", b"wait", waiter := Waiter())
    post.take()
    waiter.is_done = True
    assert post.outbox.give_up(outgoing, waiter) == 0


def test_a_frame_that_the_server_would_not_take_is_refused_here() -> None:
    post = introduced()
    post.outbox.max_frame = 200
    post.add("a", [bytes(300)])
    post.add("a", [b"small"])
    assert values_of(post.take()) == [(b"small",)]
    ((outgoing, error),) = post.outbox.refusals
    assert (error.code, outgoing.count) == ("limit_exceeded", 1)


def test_a_full_parcel_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 2 * OVERHEAD)
    post = introduced()
    for value in (b"1", b"2", b"3"):
        post.gather("a", value)
    assert post.outbox.is_full
    assert values_of(post.take()) == [(b"1", b"2"), (b"3",)]


def test_abandoned_it_holds_nothing() -> None:
    post = introduced()
    post.add("a", [b"1"])
    post.take()
    gathering = post.gather("b", b"2")
    left = post.outbox.abandon()
    assert [outgoing.route.topic for outgoing in left] == ["a", "b"]
    assert (post.outbox.bytes, post.outbox.is_empty, gathering.cap) == (0, True, 0)
    assert post.take() == []


# -- everything at once -----------------------------------------------------------------------------------------


class Server:
    """Stores what it is sent, each number once; refuses some of it, for reasons that do not change."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.producers = ProducerTable()
        self.ids = {topic: MessageIdWindow() for topic in TOPICS}
        self.now = 0.0

    def take(self, topic: str, about: PublishDetails | None, batch: bytes) -> int | RunnelError:
        message_id, sent = (None, None) if about is None else (about.message_id, about.sent)
        unpacked = unpack(batch)
        header, values = unpacked.header, unpacked.values
        log, epoch = self.logs[topic], 1 + TOPICS.index(topic)
        known: Position | None = None
        try:
            if header.producer:
                known = self.producers.find(header.producer, header.producer_sequence, header.count, self.now, sent)
            elif message_id is not None:
                known = self.ids[topic].find(message_id, self.now, sent)
        except RunnelError as error:
            return error
        if known is not None:
            assert known.epoch == epoch, "a number that named a record of another topic"
            return known.offset
        if any(value.startswith(b"bad") for value in values):
            return ValidationFailed(topic, "T", "f", "bad")
        if any(value.startswith(b"no") for value in values):
            return TopicConflict(topic, "x", 1, 2)
        first = len(log)
        log += values
        if header.producer:
            sequence = header.producer_sequence
            self.producers.remember(header.producer, sequence, header.count, Position(epoch, first), self.now)
        elif message_id is not None:
            self.ids[topic].remember(message_id, epoch, first, self.now)
        return first


class OutboxMachine(RuleBasedStateMachine):
    """Publishes, sends, loses and answers, in any order. In the end everything is stored once, where it was said."""

    @initialize()
    def begin(self) -> None:
        self.post, self.server = Post(), Server()
        self.before: set[bytes] = set()  # what servers stored that are no more
        self.frames: dict[int, deque[tuple[int, str, PublishDetails | None, bytes]]] = {}  # by lane, on the connection
        self.zombies: deque[tuple[int, str, PublishDetails | None, bytes]] = (
            deque()
        )  # on connections that the client lost
        self.answers: deque[tuple[int, int | RunnelError]] = deque()
        self.published: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.fate: dict[bytes, str] = {}  # "waiting", "stored", "refused", "unknown", "given up"
        self.waiters: dict[bytes, tuple[OutgoingBatch, Waiter, list[bytes]]] = {}
        self.batched: set[bytes] = set()  # published by calls for more than one
        self.named: set[bytes] = set()  # published with a message id
        self.numbers = count()

    def _value(self, prefix: str) -> bytes:
        return f"{prefix}{next(self.numbers)}".encode()

    def _publish(self, topic: str, values: list[bytes]) -> None:
        self.published[topic] += values
        self.fate.update(dict.fromkeys(values, "waiting"))

    @rule(
        topic=st.sampled_from(TOPICS), prefixes=st.lists(st.sampled_from(["", "", "", "bad"]), min_size=1, max_size=6)
    )
    def gather(self, topic: str, prefixes: list[str]) -> None:
        for prefix in prefixes:
            value, waiter = self._value(prefix), Waiter()
            self._publish(topic, [value])
            self.waiters[value] = (self.post.gather(topic, value, waiter), waiter, [value])

    @rule(
        topic=st.sampled_from(TOPICS),
        prefixes=st.lists(st.sampled_from(["", "", "no", "bad"]), min_size=1, max_size=3),
        is_named=st.booleans(),
    )
    def add(self, topic: str, prefixes: list[str], is_named: bool) -> None:
        values, waiter = [self._value(prefix) for prefix in prefixes], Waiter()
        self._publish(topic, values)
        self.batched.update(values)
        if is_named:
            self.named.update(values)
        outgoing = self.post.add(topic, values, waiter, f"id {values[0]!r}" if is_named else None)
        self.waiters[values[0]] = (outgoing, waiter, values)

    @rule()
    def send(self) -> None:
        decoder = FrameDecoder(kinds=FROM_CLIENT)
        for piece in self.post.outbox.take(lambda: next(self.post.ids), self.server.now):
            decoder.feed(piece)
        for kind, flags, extra, id, payload in decoder.frames():
            if kind == FrameKind.PUBLISH:
                topic, about, batch = read_publish(flags, extra, payload)
                lane = self.frames.setdefault(ROUTES[topic].lane, deque())
                lane.append((id, topic, about, batch))

    @precondition(lambda self: any(self.frames.values()))
    @rule(data=st.data(), how_many=st.integers(1, 5))
    def serve(self, data: st.DataObject, how_many: int) -> None:
        """The server works on one lane, while others wait."""
        lane = self.frames[data.draw(st.sampled_from(sorted(lane for lane, frames in self.frames.items() if frames)))]
        while lane and how_many:
            id, topic, about, batch = lane.popleft()
            self.answers.append((id, self.server.take(topic, about, batch)))
            how_many -= 1

    @precondition(lambda self: self.zombies)
    @rule()
    def serve_a_zombie(self) -> None:
        """The server goes on with what came on a connection that the client has given up."""
        _, topic, about, batch = self.zombies.popleft()
        self.server.take(topic, about, batch)

    @precondition(lambda self: self.answers)
    @rule(how_many=st.integers(1, 10))
    def answer(self, how_many: int) -> None:
        while self.answers and how_many:
            id, result = self.answers.popleft()
            if isinstance(result, RunnelError):
                fate = "unknown" if isinstance(result, OutcomeUnknown) else "refused"
                self._resolved(self.post.outbox.refused(id, result), None, fate)
            else:
                self._resolved(self.post.outbox.published(id, 1, result), result, "stored")
            how_many -= 1

    def _resolved(self, outgoing: OutgoingBatch | None, first: int | None, fate: str) -> None:
        for index, waiter in [] if outgoing is None else outgoing.waiters:
            (value, values) = next((value, values) for value, (_, one, values) in self.waiters.items() if one is waiter)
            del self.waiters[value]
            was_given_up, waiter.is_done = waiter.is_done, True
            if was_given_up:
                continue
            for place, each in enumerate(values):
                self.fate[each] = fate
                if first is not None:
                    topic = outgoing.route.topic  # type: ignore[union-attr]
                    assert self.server.logs[topic][first + index + place] == each

    @rule(keeps=st.booleans())
    def lose(self, keeps: bool) -> None:
        frames = [frame for lane in self.frames.values() for frame in lane]
        if keeps:
            self.zombies.extend(frames)
        self.frames.clear()
        self.answers.clear()
        self.post.outbox.lost()
        self.post.ids = count(1)

    @rule()
    def restart(self) -> None:
        """The server is another, which knows no producer: one in memory that was started again, say."""
        self.before.update(value for log in self.server.logs.values() for value in log)
        now, self.server = self.server.now, Server()
        self.server.now = now
        self.lose(keeps=False)
        self.zombies.clear()

    @precondition(lambda self: not self.zombies)  # no connection that is lost is read a day later
    @rule()
    def forget(self) -> None:
        """The server forgets all numbers and message ids."""
        self.server.now += MAX_PRODUCER_SECONDS

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        outgoing, waiter, values = self.waiters[data.draw(st.sampled_from(sorted(self.waiters)))]
        if not waiter.is_done:
            waiter.is_done = True
            self.post.outbox.give_up(self._where(outgoing, waiter), waiter)
            self.fate.update(dict.fromkeys(values, "given up"))

    def _where(self, outgoing: OutgoingBatch, waiter: Waiter) -> OutgoingBatch:
        """The batch that the waiter is in now: it may have been cut in halves."""
        every = self.post.outbox.unanswered()
        return next((one for one in every if any(other is waiter for _, other in one.waiters)), outgoing)

    @invariant()
    def nothing_is_stored_twice_or_out_of_order(self) -> None:
        for topic, log in self.server.logs.items() if hasattr(self, "server") else ():
            assert len(set(log)) == len(log)
            order = {value: place for place, value in enumerate(self.published[topic])}
            # What has an id of its own is told apart by that, and not held up when what came before is refused.
            places = [order[value] for value in log if value not in self.named]
            assert places == sorted(places)

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        for _ in range(500):
            self.send()
            for lane in self.frames.values():
                for id, topic, about, batch in lane:
                    self.answers.append((id, self.server.take(topic, about, batch)))
                lane.clear()
            if not self.answers and self.post.outbox.is_empty:
                break
            self.answer(1000)
        assert self.post.outbox.is_empty
        assert self.post.outbox.bytes == 0
        stored = self.before | {value for log in self.server.logs.values() for value in log}
        for value, fate in self.fate.items():
            assert fate != "waiting"
            if fate == "stored":
                assert value in stored
            elif fate == "refused":
                assert value not in stored
        refused = {value for value, fate in self.fate.items() if fate == "refused"}
        for value in refused - self.batched:
            assert value.startswith(b"bad"), "a single record is refused for its own fault alone"
        self.nothing_is_stored_twice_or_out_of_order()


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
