"""The gate of a log: who reads it, who is woken, and who is in a publisher's way."""

import asyncio
from collections import deque

from runnel.broker.gate import TURN, Blocked, Entry, Gate, Watch
from runnel.broker.log import CHUNK, KEEP_COUNT
from tests.broker.rig import Notes, make_flow, make_log, make_timeline, on_log, put


def reader(policy: str = "drop_oldest", buffer: int = KEEP_COUNT, label: str = "r") -> Notes:
    owner = make_flow(on_log(make_timeline(), make_log()), policy, buffer)[1]
    owner.label = label
    return owner


def entry(count: int = 1) -> Entry:
    return Entry([b"x"] * count, None, count)


def test_readers_come_and_go() -> None:
    gate, one, two = Gate(), reader(), reader()
    gate.attach(one, pattern=False)
    gate.attach(two, pattern=True)
    assert list(gate) == [one, two]
    gate.detach(one)
    gate.detach(two)
    assert list(gate) == []
    gate.detach(one)  # harmless


def test_only_flows_that_must_be_asked_are() -> None:
    gate = Gate()
    for policy in ("drop_oldest", "drop_newest", "block", "disconnect"):
        gate.attach(reader(policy), pattern=False)
    assert [flow.policy.kind.value for flow in gate.limited] == ["drop_newest", "block", "disconnect"]


def test_detaching_takes_the_flow_off_the_publishers_way() -> None:
    gate, blocker = Gate(), reader("block", buffer=1)
    gate.attach(blocker, pattern=True)
    assert gate.refusing(make_log(), entry(2)) is blocker.flow
    gate.detach(blocker)
    assert gate.refusing(make_log(), entry(2)) is None


def test_publishers_pause_after_half_of_the_smallest_buffer() -> None:
    gate, small, smaller = Gate(), reader(buffer=100), reader(buffer=1)
    assert gate.turn == TURN
    gate.attach(reader(), pattern=False)
    assert gate.turn == KEEP_COUNT // 2
    gate.attach(small, pattern=False)
    gate.attach(smaller, pattern=True)
    assert gate.turn == 1
    gate.detach(smaller)
    assert gate.turn == 50
    gate.detach(small)
    assert gate.turn == KEEP_COUNT // 2


def test_room_is_the_least_of_all_and_never_negative() -> None:
    gate = Gate()
    assert gate.room() == CHUNK
    gate.attach(reader("block", buffer=7), pattern=False)
    assert gate.room() == 3  # half a buffer
    timeline, log = make_timeline(), make_log()
    full = make_flow(on_log(timeline, log), "block", 2)[1]
    put(timeline, log, b"x", b"x", b"x")
    gate.attach(full, pattern=False)
    assert gate.room() == 0


def test_waking_wakes_each_sleeper_once_and_patterns_always() -> None:
    gate, asleep, awake, pattern = Gate(), reader(), reader(), reader()
    for one in (asleep, awake):
        gate.attach(one, pattern=False)
    gate.attach(pattern, pattern=True)
    gate.parked[asleep] = None
    gate.wake()
    gate.wake()
    assert (asleep.woken, awake.woken, pattern.woken) == (1, 0, 2)


def test_what_readers_still_want_is_the_most_that_any_of_them_may_read() -> None:
    gate, timeline, log = Gate(), make_timeline(), make_log()
    put(timeline, log, *[b"x"] * 50)
    demanding = [make_flow(on_log(timeline, log, 20), "drop_oldest", buffer)[1] for buffer in (10, 5000)]
    for one in (reader(buffer=1000), *demanding):
        gate.attach(one, pattern=False)
    assert gate.needed() == 30
    assert gate.needed_bytes() == 10**6 + 30, "history comes on top"
    for one in demanding:
        gate.detach(one)
    assert gate.needed() == 0
    assert (Gate().needed(), Gate().needed_bytes()) == (0, 0)


async def test_release_goes_on_in_order_while_it_fits() -> None:
    gate, appended = Gate(), []
    timeline, log = make_timeline(), make_log()
    blocker = make_flow(on_log(timeline, log), "block", 3)[1]
    gate.attach(blocker, pattern=False)
    loop = asyncio.get_running_loop()
    waiting = [Blocked(entry(count), loop.create_future()) for count in (2, 2, 1)]
    gate.blocked = deque(waiting)

    def append(one: Entry) -> int:
        appended.append(len(one.values))
        return put(timeline, log, *one.values)

    gate.release(log, append)
    assert (appended, len(gate.blocked)) == ([2], 2)
    assert waiting[0].first.result() == 0
    assert not waiting[2].first.done(), "the last would fit, but it is not its turn"


async def test_release_passes_over_those_who_gave_up() -> None:
    gate = Gate()
    loop = asyncio.get_running_loop()
    gone, here = Blocked(entry(), loop.create_future()), Blocked(entry(), loop.create_future())
    gate.blocked = deque([gone, here])
    gone.first.cancel()
    gate.release(make_log(), lambda one: 7)
    assert here.first.result() == 7
    assert not gate.blocked


async def test_a_watch_is_told_once_and_may_have_given_up() -> None:
    watch = Watch(5, asyncio.get_running_loop().create_future())
    watch.tell()
    watch.tell()
    assert watch.passed.done()
    given_up = Watch(5, asyncio.get_running_loop().create_future())
    given_up.passed.cancel()
    given_up.tell()
    assert given_up.passed.cancelled()
