"""The readers of a topic: who reads it, who is woken, and who blocks a publisher."""

import asyncio
from collections import deque
from math import inf

from runnel.broker.topic.log import CHUNK
from runnel.broker.topic.readers import BlockedPublish, ProcessedWaiter, TopicReaders
from runnel.core.options import KEEP_COUNT
from runnel.core.publishing import Append
from tests.broker.broker_parts import Notes, make_flow, make_log, make_timeline, on_log, put


def reader(policy: str = "drop_oldest", buffer: int = KEEP_COUNT, label: str = "r") -> Notes:
    owner = make_flow(on_log(make_timeline(), make_log()), policy, buffer)[1]
    owner.label = label
    return owner


def entry(count: int = 1) -> Append:
    return Append([b"x"] * count, None, count)


def test_readers_come_and_go() -> None:
    topic_readers, one, two = TopicReaders(), reader(), reader()
    topic_readers.attach(one)
    topic_readers.cover((two,))
    assert list(topic_readers) == [one, two]
    topic_readers.detach(one)
    topic_readers.cover(())
    assert list(topic_readers) == []
    topic_readers.detach(one)  # harmless


def test_only_flows_that_must_be_asked_are() -> None:
    topic_readers = TopicReaders()
    for policy in ("drop_oldest", "drop_newest", "block", "disconnect"):
        topic_readers.attach(reader(policy))
    assert [overflow.policy.kind.value for overflow in topic_readers.limited] == ["drop_newest", "block", "disconnect"]


def test_detaching_takes_the_flow_off_the_publishers_way() -> None:
    topic_readers, blocker = TopicReaders(), reader("block", buffer=1)
    topic_readers.cover((blocker,))
    assert topic_readers.refusing(make_log(), entry(2)) is blocker.overflow
    topic_readers.cover(())
    assert topic_readers.refusing(make_log(), entry(2)) is None


def test_a_reader_that_has_no_room_hurries_publishers_until_it_turns_out_not_to_read() -> None:
    topic_readers, timeline, log = TopicReaders(), make_timeline(), make_log()
    small, large = (make_flow(on_log(timeline, log), "drop_oldest", buffer)[1] for buffer in (4, 100))
    for one in (small, large):
        topic_readers.attach(one)
    assert topic_readers.hurried(0, 0, 9, 9) == [], "a batch that is larger than a buffer waits for nothing"
    put(timeline, log, b"x", b"x")
    assert topic_readers.hurried(2, 2, 2, 2) == []
    assert topic_readers.hurried(2, 2, 3, 3) == [small.overflow]
    assert topic_readers.room(log, 2) == 2, "the fast path goes no further either"
    small.overflow.until = inf
    assert topic_readers.hurried(2, 2, 3, 3) == []
    assert topic_readers.hurried(2, 2, 99, 99) == [large.overflow]
    small.overflow.take(9)
    topic_readers.park(small)
    put(timeline, log, b"x", b"x")
    assert topic_readers.hurried(4, 4, 3, 3) == [small.overflow], "it has caught up, and counts again"


def test_one_that_drops_records_already_hurries_no_other() -> None:
    topic_readers, timeline, log = TopicReaders(), make_timeline(), make_log()
    slow = make_flow(on_log(timeline, log), "drop_oldest", 4)[1]
    topic_readers.attach(slow)
    put(timeline, log, *[b"x"] * 5)
    assert topic_readers.room(log, 5) == CHUNK
    assert topic_readers.hurried(5, 5, 1, 1) == []


def test_room_is_the_least_of_all_and_never_negative() -> None:
    topic_readers = TopicReaders()
    assert topic_readers.room(make_log(), 0) == CHUNK
    topic_readers.attach(reader("block", buffer=7))
    assert topic_readers.room(make_log(), 0) == 7
    timeline, log = make_timeline(), make_log()
    full = make_flow(on_log(timeline, log), "block", 2)[1]
    put(timeline, log, b"x", b"x", b"x")
    topic_readers.attach(full)
    assert topic_readers.room(log, 3) == 0


def test_waking_wakes_each_sleeper_once_and_patterns_always() -> None:
    topic_readers, asleep, awake, pattern = TopicReaders(), reader(), reader(), reader()
    for one in (asleep, awake):
        topic_readers.attach(one)
    topic_readers.cover((pattern,))
    topic_readers.parked[asleep] = None
    topic_readers.wake()
    topic_readers.wake()
    assert (asleep.woken, awake.woken, pattern.woken) == (1, 0, 2)


def test_what_readers_still_want_is_the_most_that_any_of_them_may_read() -> None:
    topic_readers, timeline, log = TopicReaders(), make_timeline(), make_log()
    put(timeline, log, *[b"x"] * 50)
    demanding = [make_flow(on_log(timeline, log, 20), "drop_oldest", buffer)[1] for buffer in (10, 5000)]
    for one in (reader(buffer=1000), *demanding):
        topic_readers.attach(one)
    assert topic_readers.needed() == 30
    assert topic_readers.needed_bytes() == 50, "of a run that is in part read, all"
    for one in demanding:
        topic_readers.detach(one)
    assert topic_readers.needed() == 0
    assert (TopicReaders().needed(), TopicReaders().needed_bytes()) == (0, 0)


async def test_release_goes_on_in_order_while_it_fits() -> None:
    topic_readers, appended = TopicReaders(), []
    timeline, log = make_timeline(), make_log()
    blocker = make_flow(on_log(timeline, log), "block", 3)[1]
    topic_readers.attach(blocker)
    loop = asyncio.get_running_loop()
    waiting = [BlockedPublish(entry(count), loop.create_future()) for count in (2, 2, 1)]
    topic_readers.blocked = deque(waiting)

    def append(one: Append) -> int:
        appended.append(len(one.values))
        return put(timeline, log, *one.values)

    topic_readers.release(log, append)
    assert (appended, len(topic_readers.blocked)) == ([2], 2)
    assert waiting[0].first.result() == 0
    assert not waiting[2].first.done(), "the last would fit, but it is not its turn"


async def test_release_passes_over_those_who_gave_up() -> None:
    topic_readers = TopicReaders()
    loop = asyncio.get_running_loop()
    gone, here = BlockedPublish(entry(), loop.create_future()), BlockedPublish(entry(), loop.create_future())
    topic_readers.blocked = deque([gone, here])
    gone.first.cancel()
    topic_readers.release(make_log(), lambda one: 7)
    assert here.first.result() == 7
    assert not topic_readers.blocked


async def test_a_watch_is_notified_once_and_may_have_given_up() -> None:
    watch = ProcessedWaiter(5, asyncio.get_running_loop().create_future())
    watch.tell()
    watch.tell()
    assert watch.passed.done()
    given_up = ProcessedWaiter(5, asyncio.get_running_loop().create_future())
    given_up.passed.cancel()
    given_up.tell()
    assert given_up.passed.cancelled()
