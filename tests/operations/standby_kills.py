"""Kills primaries under load and promotes their standbys: `python -m tests.operations.standby_kills --kills 50`.

Two servers in processes of their own, publishers here. In turns the primary is killed (kill -9) or suspended (SIGSTOP,
and SIGCONT when its standby has taken over), the standby is promoted, and the old primary comes back as its standby. In
the end all is read. In sync mode every acknowledged record must be there, once, at the position that its publisher got,
in order; in async mode what was acknowledged and not sent may be missing, and how much that was is printed (RPO). In
both no position may name two records. RTO: from the kill to the next acknowledged record, with the command given at
once; it contains the lease in sync mode. Exit code 0: all promises were kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import runnel
from runnel.core.errors import RunnelError
from runnel.testing import History
from tests.operations.standby_pair import until
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
TOPIC = "orders"
SEGMENT = 4 << 20  # bytes: some rolls happen in every trial


class Outcome(msgspec.Struct):
    """What a trial found. Times in seconds."""

    mode: str
    kills: int = 0
    stops: int = 0
    acked: int = 0
    lost: list[int] = []  # acknowledged records that are missing, of each kill
    lost_stopped: list[int] = []  # and of each suspension: also what the old primary acknowledged when it went on
    lost_seconds: list[float] = []  # from the first of them to the failover
    rto: list[float] = []
    promotion: list[float] = []
    wrong: list[str] = []

    def shown(self) -> str:
        """In a few lines."""
        rto, lost, ages = sorted(self.rto), sorted(self.lost), sorted(self.lost_seconds)
        return (
            f"{self.mode}: {self.kills} kills, {self.stops} suspensions, {self.acked:,} records acknowledged\n"
            f"  RPO of kills: {sum(lost):,} records lost in all, {lost[len(lost) // 2] if lost else 0} in the middle, "
            f"{max(lost, default=0)} at most; of the last {max(ages, default=0.0) * 1000:.0f} ms at most\n"
            f"  RPO of suspensions: {sum(self.lost_stopped):,} records lost in all\n"
            f"  RTO: {rto[len(rto) // 2] if rto else 0:.2f} s in the middle, {max(rto, default=0.0):.2f} s at most\n"
            f"  {'; '.join(self.wrong) or 'all promises were kept'}"
        )


class Node:
    """A folder, and the server on it."""

    def __init__(self, folder: Path, mode: str, lease: float) -> None:
        self.folder, self.port = folder, 0
        self._options = ("--standby", mode, "--standby-lease", f"{lease}s", "--journal-segment-bytes", str(SEGMENT))
        self.process: Process | None = None

    @property
    def url(self) -> str:
        return f"runnel://127.0.0.1:{self.port}"

    async def serve(self) -> None:
        """Be a primary."""
        await self._start("serve")

    async def follow(self, primary: Node, *, rejoin: bool = False) -> None:
        """Be a standby."""
        await self._start("standby", "--from", primary.url, *(["--rejoin"] if rejoin else []))

    async def _start(self, *command: str) -> None:
        where = ("--data", str(self.folder), "--port", str(self.port), "--json-port", "off", "--http-port", "off")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}
        said = (*command, *where, *self._options, "--json", "--log-level", "error", "--journal-min-free", "0")
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "runnel", *said, cwd=ROOT, env=env, stdin=DEVNULL, stdout=PIPE, stderr=log
            )
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self.process.stdout.readline()
        assert line, f"`runnel {' '.join(said)}` ended: see {self.folder}.log"
        self.port = next(int(door["port"]) for door in json.loads(line)["listeners"] if door["name"] == "native")

    async def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End its process."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(how)
            await self.process.wait()

    async def ask(self, method: str, args: dict[str, Any]) -> Any:
        """The result of an operator's call."""
        async with runnel.open(self.url, operator=True, wait=PATIENCE, timeout=PATIENCE) as broker:
            return await broker.backend.administer(method, args)

    async def figures(self) -> dict[str, Any]:
        """Its part in the warm standby."""
        found: dict[str, Any] = (await self.ask("statistics", {}))["replication"] or {}
        return found


class Load:
    """Publishers that never stop, and what they were told."""

    def __init__(self, publishers: int) -> None:
        self.history = History()
        self.acked: dict[tuple[int, int], tuple[str, float]] = {}  # by position: the record, and when
        self.wrong: list[str] = []
        self.ended = False
        self._publishers = publishers

    async def run(self, url: str) -> None:
        """Publish until told to end."""
        async with runnel.open(url, wait=PATIENCE, timeout=PATIENCE, backoff_min=0.005, backoff_max=0.05) as broker:
            async with asyncio.TaskGroup() as group:
                for number in range(self._publishers):
                    group.create_task(self._publish(broker.topic(TOPIC), f"p{number}"))

    async def _publish(self, topic: Any, name: str) -> None:
        number = 0
        while not self.ended:
            id = f"{name}-{number}"
            number += 1
            self.history.intend(TOPIC, id, name)
            try:
                position = await topic.publish(id.encode())
            except RunnelError:
                self.history.unknown(TOPIC, id)
                await asyncio.sleep(0.01)
                continue
            self.history.acknowledged(TOPIC, id, position.epoch, position.offset)
            place = position.epoch, position.offset
            if place in self.acked:
                self.wrong.append(f"{place} names {self.acked[place][0]} and {id}")
            self.acked[place] = id, time.monotonic()


async def trial(
    folder: Path, mode: str, failovers: int, seed: int, *, lease: float = 1.0, publishers: int = 16
) -> Outcome:
    """So many failovers of one pair; all of it is judged at the end."""
    rng, found = random.Random(seed), Outcome(mode)
    primary, standby = Node(folder / "a", mode, lease), Node(folder / "b", mode, lease)
    load, times = Load(publishers), list[Failover]()
    try:
        await primary.serve()
        await standby.follow(primary)
        await follows(primary, mode)
        running = asyncio.ensure_future(load.run(f"{primary.url},127.0.0.1:{standby.port}"))
        for _ in range(failovers):
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            stops = rng.random() < 0.25
            began = await fail_over(primary, standby, load, found, mode, stops=stops)
            times.append(Failover(began, time.monotonic(), stops))
            primary, standby = standby, primary
            if stops:
                await standby.end()
            await standby.follow(primary, rejoin=True)
            await follows(primary, mode)
        load.ended = True
        await running
        await judge(primary, load, found, times, mode)
    finally:
        for node in (primary, standby):
            if node.process is not None and node.process.returncode is None:
                node.process.send_signal(signal.SIGCONT)
            await node.end()
    found.acked = len(load.acked)
    return found


async def follows(primary: Node, mode: str) -> None:
    """Wait until the standby has everything."""
    deadline, found = time.monotonic() + PATIENCE, dict[str, Any]()
    while time.monotonic() < deadline:
        found = await primary.figures()
        followers = found.get("followers", [])
        if any(one["mode"] == mode and one["state"] == "following" and one["left"] == 0 for one in followers):
            return
        await asyncio.sleep(0.02)
    logs = "\n".join(log.read_text()[-3000:] for log in sorted(primary.folder.parent.glob("*.log")))
    raise AssertionError(f"the standby does not catch up: {found}\n{logs}")


async def fail_over(primary: Node, standby: Node, load: Load, found: Outcome, mode: str, *, stops: bool) -> float:
    """Kill or suspend the primary and promote its standby; when that began."""
    assert primary.process is not None
    before = len(load.acked)
    began = time.monotonic()
    if stops:
        primary.process.send_signal(signal.SIGSTOP)
        found.stops += 1
    else:
        await primary.end()
        found.kills += 1
    await standby.ask("promote", {"primary_is_down": mode == "async"})
    found.promotion.append(time.monotonic() - began)
    if stops:
        primary.process.send_signal(signal.SIGCONT)  # it does not know yet that it is none any more
    promoted = began + found.promotion[-1]
    await until(lambda: any(at > promoted for _, at in list(load.acked.values())[before:]))
    found.rto.append(min(at for _, at in list(load.acked.values())[before:] if at > promoted) - began)
    if stops:
        async with asyncio.timeout(PATIENCE):
            while (await primary.figures()).get("role") != "superseded":  # noqa: ASYNC110  # another process's
                await asyncio.sleep(0.05)
    return began


class Failover(NamedTuple):
    """When a primary was ended, when it surely had, and how."""

    began: float
    ended: float
    stops: bool


async def judge(primary: Node, load: Load, found: Outcome, times: list[Failover], mode: str) -> None:
    """Read everything, and compare it with what publishers were told."""
    there: dict[tuple[int, int], str] = {}
    load.history.subscribed("judge", TOPIC, 0)
    async with runnel.open(primary.url, wait=PATIENCE) as broker:
        last = await broker.publish(TOPIC, b"the end")
        async with broker.subscribe(TOPIC, start="earliest") as records:
            async for record in records:
                if record.offset == last.offset:
                    break
                place, id = (record.epoch, record.offset), record.value.decode()
                load.history.saw("judge", record)
                if place in load.acked and load.acked[place][0] != id:
                    load.wrong.append(f"{place} was {load.acked[place][0]}, and is {id}")
                there[place] = id
    load.history.ended("judge", TOPIC, last.offset)
    lost, ages = [0] * len(times), [0.0] * len(times)
    for place, (id, at) in load.acked.items():
        if place not in there:
            which = next((n for n, one in enumerate(times) if one.ended >= at), len(times) - 1)
            lost[which] += 1
            ages[which] = max(ages[which], times[which].began - at)
            if mode == "sync":
                load.wrong.append(f"{id} at {place} was acknowledged and is lost")
    found.lost = [count for count, one in zip(lost, times, strict=True) if not one.stops]
    found.lost_stopped = [count for count, one in zip(lost, times, strict=True) if one.stops]
    found.lost_seconds = [age for age, one in zip(ages, times, strict=True) if not one.stops]
    if len(set(there.values())) < len(there):
        load.wrong.append(f"{len(there) - len(set(there.values()))} records are there twice")
    if mode == "sync":
        load.wrong += [str(one) for one in load.history.check().violations[:10]]  # lost, invented, out of order
    found.wrong = load.wrong[:20]


def main() -> int:
    """Run trials in both modes, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="failovers in each mode")
    parser.add_argument("--modes", default="sync,async")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--publishers", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    status = 0
    for mode in chosen.modes.split(","):
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            found = asyncio.run(
                trial(
                    Path(folder),
                    mode,
                    chosen.kills,
                    chosen.seed,
                    lease=chosen.lease,
                    publishers=chosen.publishers,
                )
            )
        sys.stdout.write(found.shown() + "\n")
        sys.stdout.flush()
        status |= bool(found.wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
