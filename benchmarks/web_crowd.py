"""Many browsers in one process, as lean as Python allows: raw sockets that count events, and a publisher beside them.

`python -m benchmarks.web_crowd PLAN`: started by `web`, with a plan in JSON; says what it came to in one line of JSON.
An event's value begins with `~`, which nothing else in the streams holds, and the monotonic clock when it was sent: so
counting is one look for a byte, whatever the server writes around it. The next publish goes out when everybody has the
last one: each wake-up of a stream carries one publish, and no server is flattered by events that pile up.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

MARK = b"~"
SIZE = 100  # bytes of a value
ROOM = 1 << 18  # bytes that are read at a time
STALLED = 30.0  # seconds without a byte, after which nothing more is waited for
WARM = 3  # publishes before the clock runs
_STAMP = re.compile(rb"~(\d{19})")

now = time.monotonic_ns


class Crowd:
    """The connections, and how many events each has."""

    def __init__(self, port: int, path: str, count: int) -> None:
        self._buffer = bytearray(ROOM)
        self._poll = select.epoll()
        self.ages: list[int] = []
        self.sockets: dict[int, socket.socket] = {}
        ask = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n" % path.encode()
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(ask)
            self.sockets[one.fileno()] = one
            self._poll.register(one.fileno(), select.EPOLLIN)
        self.got = dict.fromkeys(self.sockets, 0)
        waiting = dict.fromkeys(self.sockets, b"")
        while waiting:  # until each had the head of its answer and the first line behind it
            for at, _ in self._events():
                came = self.sockets[at].recv(ROOM)
                if at not in waiting:
                    continue  # a heartbeat: the others are still coming
                waiting[at] += came
                head, _, first = waiting[at].partition(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"not an event stream: {head[:200]!r}")
                if b"\n\n" in first or b"\n\r\n" in first:
                    del waiting[at]

    def _events(self) -> list[tuple[int, int]]:
        found = self._poll.poll(STALLED)
        if not found:
            raise RuntimeError(f"nothing came for {STALLED:g} s; each has {sorted(set(self.got.values()))[:5]} events")
        return found

    def read(self, wanted: int, *, aged: bool = False) -> None:
        """Read until everybody has so many events in all."""
        buffer, got, sockets = self._buffer, self.got, self.sockets
        left = {at for at, count in got.items() if count < wanted}
        while left:
            for at, _ in self._events():
                size = sockets[at].recv_into(buffer)
                if not size:
                    raise RuntimeError("the server closed a stream")
                got[at] += buffer.count(MARK, 0, size)
                if aged and (found := _STAMP.search(buffer, 0, size)):
                    self.ages.append(now() - int(found[1]))
                if got[at] >= wanted:
                    left.discard(at)

    def close(self) -> None:
        """Everybody goes."""
        for one in self.sockets.values():
            one.close()


class Publisher:
    """One connection that publishes, and reads its answers."""

    def __init__(self, port: int, path: str, kind: str) -> None:
        self._head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: ".encode()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waits = 0  # for answers

    def publish(self, bodies: Sequence[bytes]) -> None:
        """Send these, one behind the other."""
        self.socket.sendall(b"".join(b"%b%d\r\n\r\n%b" % (self._head, len(body), body) for body in bodies))
        self.waits += len(bodies)

    def answered(self) -> None:
        """Read the answers."""
        data = b""
        while self.waits:
            if not (came := self.socket.recv(ROOM)):
                raise RuntimeError("the server closed the publisher's connection")
            data += came
            if (good := data.count(b"HTTP/1.1 20")) >= self.waits and data.count(b"HTTP/1.1 ") == good:
                self.waits = 0
            elif b"HTTP/1.1 4" in data or b"HTTP/1.1 5" in data:
                raise RuntimeError(f"refused: {data[:300]!r}")


def value() -> bytes:
    """One, sent now."""
    return (MARK + b"%019d" % now()).ljust(SIZE, b".")


def bodies(plan: dict[str, Any]) -> list[bytes]:
    """What one publish sends: so many events, in one body of lines or in bodies of their own."""
    values = [value() for _ in range(plan["together"])]
    return [b"\n".join(values)] if plan["lines"] else values


def deliver(plan: dict[str, Any]) -> dict[str, Any]:
    """Publish `publishes` times to `connections` streams, each time when everybody has the last one."""
    before = memory(plan["pids"])
    crowd = Crowd(plan["port"], plan["events"], plan["connections"])
    held = memory(plan["pids"]) - before
    publisher = Publisher(plan["port"], plan["topic"], plan["kind"])
    wanted, pids = 0, plan["pids"]
    begun = used = 0.0
    for turn in range(-WARM, plan["publishes"]):
        if not turn:
            begun, used = time.perf_counter(), cpu(pids)
        publisher.publish(bodies(plan))
        wanted += plan["together"]
        crowd.read(wanted)
        publisher.answered()
    seconds, used = time.perf_counter() - begun, cpu(pids) - used
    every = plan["paced"] * 1e9
    due = now()
    for _ in range(plan["looks"]):  # how late events are when the server has time
        due += int(every)
        time.sleep(max(0, due - now()) / 1e9)
        publisher.publish(bodies(plan))
        wanted += plan["together"]
        crowd.read(wanted, aged=True)
        publisher.answered()
    held_after = memory(pids) - before
    crowd.close()
    over = sum(count - wanted for count in crowd.got.values())
    found = {"seconds": seconds, "cpu": used, "ages": sorted(crowd.ages), "over": over}
    return found | {"memory": held, "memory_after": held_after}


def store(plan: dict[str, Any]) -> dict[str, Any]:
    """Publish `publishes` bodies of `together` lines over so many connections, each awaited before the next."""
    publishers = [Publisher(plan["port"], plan["topic"], plan["kind"]) for _ in range(plan["connections"])]
    poll = select.epoll()
    by = {one.socket.fileno(): one for one in publishers}
    for at in by:
        poll.register(at, select.EPOLLIN)
    body, left = bodies(plan), plan["publishes"]
    ages: list[int] = []
    sent = dict.fromkeys(by, now())
    for one in publishers:
        one.publish(body)
    for one in publishers:
        one.answered()
    begun, used, under_way = time.perf_counter(), cpu(plan["pids"]), 0
    for at, one in by.items():
        sent[at] = now()
        one.publish(body)
        left, under_way = left - 1, under_way + 1
    while under_way:
        if not (ready := poll.poll(STALLED)):
            raise RuntimeError(f"no answer came for {STALLED:g} s")
        for at, _ in ready:
            by[at].answered()
            ages.append(now() - sent[at])
            under_way -= 1
            if left:
                sent[at] = now()
                by[at].publish(body)
                left, under_way = left - 1, under_way + 1
    return {"seconds": time.perf_counter() - begun, "cpu": cpu(plan["pids"]) - used, "ages": sorted(ages), "over": 0}


def cpu(pids: Sequence[int]) -> float:
    """Seconds that these processes have computed, all threads, as the kernel counts them."""
    return scheduled(pids)[0]


def scheduled(pids: Sequence[int]) -> tuple[float, float]:
    """Seconds that these processes have computed, and that they were ready to and others had the cores: all threads."""
    computed = ready = 0
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as told:
                one = told.read().split()
            computed, ready = computed + int(one[0]), ready + int(one[1])
    return computed / 1e9, ready / 1e9


def memory(pids: Sequence[int]) -> int:
    """Bytes that these processes have for themselves."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as told:
            total += sum(int(line.split()[1]) * 1024 for line in told if line.startswith("Private_Dirty:"))
    return total


def main(arguments: Sequence[str]) -> int:
    """Do what the plan says; print what it came to."""
    plan = json.loads(arguments[0])
    print(json.dumps({"deliver": deliver, "store": store}[plan["task"]](plan)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
