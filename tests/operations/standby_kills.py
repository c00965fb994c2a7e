"""Kills primaries and standbys under load: `python -m tests.operations.standby_kills --kills 50 --others 50`.

Two servers in processes of their own; publishers, a reader and a group here. In turns the primary is killed (kill -9)
or suspended (SIGSTOP, and SIGCONT when its standby has taken over), the standby is promoted, and the old primary comes
back as its standby. Between these `--others` have either of the two, or both, killed or suspended at any moment,
promotions raced or killed, and what was killed come back with the command that it had.

In the end all is read. In sync mode every acknowledged record must be there, once, at the position that its publisher
got, in order; what a subscriber saw must be there, too, and what a group's member acknowledged must not come again. In
async mode what was acknowledged and not sent may be missing, and how much that was is printed (RPO). In both no
position may name two records, and a transaction is there whole or not at all. RTO: from the kill to the next
acknowledged record, with the command given at once; it contains the lease in sync mode. Exit code 0: all promises were
kept.
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
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import runnel
from runnel.core.errors import RunnelError
from runnel.testing import History
from tests.operations.standby_pair import until
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
TOPIC, JOBS, LEFT, RIGHT = "orders", "jobs", "left", "right"
SEGMENT = 4 << 20  # bytes: some rolls happen in every trial


Place = tuple[int, int]  # epoch and offset


class Outcome(msgspec.Struct):
    """What a trial found. Times in seconds."""

    mode: str
    kills: int = 0
    stops: int = 0
    others: Counter[str] = Counter()
    acked: int = 0
    read: int = 0
    settled: int = 0
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
            f"{self.mode}: {self.kills} kills, {self.stops} suspensions, {self.acked:,} records acknowledged, "
            f"{self.read:,} read meanwhile, {self.settled:,} settled by a group\n"
            f"  between these: {', '.join(f'{count} {what}' for what, count in self.others.items()) or 'nothing'}\n"
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

    def suspend(self) -> None:
        """Have its process do nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    async def ask(self, method: str, args: dict[str, Any]) -> Any:
        """The result of an operator's call."""
        async with runnel.open(self.url, operator=True, wait=PATIENCE, timeout=PATIENCE) as broker:
            return await broker.backend.administer(method, args)

    async def figures(self) -> dict[str, Any]:
        """Its part in the warm standby."""
        found: dict[str, Any] = (await self.ask("statistics", {}))["replication"] or {}
        return found


class Load:
    """Clients that never stop, and what they were told: publishers, a reader and a group."""

    def __init__(self, publishers: int, mode: str) -> None:
        self.history = History()
        self.acked: dict[Place, tuple[str, float]] = {}  # by position: the record, and when
        self.seen: dict[Place, str] = {}
        self.settled: set[Place] = set()
        self.pairs: dict[str, bool] = {}  # transactions: whether they were acknowledged
        self.wrong: list[str] = []
        self.ended = False
        self._publishers, self._mode = publishers, mode

    async def run(self, url: str) -> None:
        """Go on until told to end."""
        async with runnel.open(url, wait=PATIENCE, timeout=PATIENCE, backoff_min=0.005, backoff_max=0.05) as broker:
            readers = [asyncio.ensure_future(self._read(broker)), asyncio.ensure_future(self._settle(broker))]
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(self._publishers):
                        group.create_task(self._publish(broker.topic(TOPIC), f"p{number}"))
                    group.create_task(self._transact(broker))
                    group.create_task(self._order(broker.topic(JOBS)))
                    for one in readers:
                        one.add_done_callback(self._note_end)
            finally:
                for one in readers:
                    one.cancel()
                await asyncio.wait(readers)

    def _note_end(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled():
            self.wrong.append(f"a reader ended: {reader.exception()!r}")

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

    async def _transact(self, broker: Any) -> None:
        """Each transaction publishes to two topics."""
        number = 0
        while not self.ended:
            id = f"t{number}"
            number += 1
            self.pairs[id] = False
            try:
                async with broker.transaction() as tx:
                    tx.publish(LEFT, id.encode())
                    tx.publish(RIGHT, id.encode())
                self.pairs[id] = True
            except RunnelError:
                pass
            await asyncio.sleep(0.002)

    async def _order(self, topic: Any) -> None:
        while not self.ended:
            with suppress(RunnelError):
                await topic.publish(b"job")
            await asyncio.sleep(0.005)

    async def _read(self, broker: Any) -> None:
        """What is seen must stay: in sync mode nothing is visible that the standby has not."""
        async with broker.subscribe(TOPIC, start="earliest") as records:
            async for record in records:
                self.seen[record.epoch, record.offset] = record.value.decode()

    async def _settle(self, broker: Any) -> None:
        async with broker.subscribe(JOBS, group="workers", prefetch=8) as deliveries:
            async for delivery in deliveries:
                place = delivery.epoch, delivery.offset
                if place in self.settled and self._mode == "sync":
                    self.wrong.append(f"job {place} came again after its ack")
                try:
                    await delivery.ack(durable=True)
                except RunnelError:
                    continue
                self.settled.add(place)


class Pair:
    """A primary and its standby, under load, and what is done to them."""

    def __init__(self, primary: Node, standby: Node, mode: str, load: Load, rng: random.Random, lease: float) -> None:
        self.primary, self.standby, self.mode, self.load = primary, standby, mode, load
        self.rng, self.lease = rng, lease

    async def caught_up(self) -> None:
        await follows(self.primary, self.mode)

    async def _some_time(self, most: float) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, most))

    async def kill_the_standby(self) -> None:
        """Several times, also while it starts or copies."""
        for _ in range(self.rng.randint(1, 3)):
            await self.standby.end()
            await self._some_time(0.3)
            await self.standby.follow(self.primary)
            await self._some_time(0.3)

    async def suspend_the_standby(self) -> None:
        """For longer than its lease, or not."""
        self.standby.suspend()
        await self._some_time(4 * self.lease)
        self.standby.resume()

    async def kill_the_primary(self) -> None:
        """It comes back as the primary that it was."""
        await self.primary.end()
        await self._some_time(0.3)
        await self.primary.serve()

    async def suspend_the_primary(self) -> None:
        """For longer than its lease, or not."""
        self.primary.suspend()
        await self._some_time(4 * self.lease)
        self.primary.resume()

    async def kill_both(self) -> None:
        """They come back at once."""
        await asyncio.gather(self.primary.end(), self.standby.end())
        await self._some_time(0.3)
        await self.primary.serve()
        await self.standby.follow(self.primary)

    async def race_promotions(self) -> None:
        """Two operators promote at once, and in sync mode the old primary comes back meanwhile, in vain."""
        await self.primary.end()
        asked = [asyncio.ensure_future(self._promote(self.standby)) for _ in range(2)]
        if self.mode == "sync":
            await self._some_time(0.3)
            await self.primary.serve()
        told = await asyncio.gather(*asked)
        if sum(told) != 1:
            self.load.wrong.append(f"of two promotions at once {sum(told)} succeeded")
        await self.primary.end()
        await self._turn()

    async def kill_a_promotion(self) -> None:
        """The promotion is killed at some moment, and the standby comes back with the command that it had."""
        await self.primary.end()
        asked = asyncio.ensure_future(self._promote(self.standby))
        await self._some_time((self.lease if self.mode == "sync" else 0.0) + 0.1)
        await self.standby.end()
        await asked
        await self.standby.follow(self.primary)
        if (await self.standby.figures()).get("role") == "standby":
            await self._promote(self.standby)
        await self._turn()

    async def _promote(self, node: Node) -> bool:
        try:
            async with runnel.open(node.url, operator=True, wait=PATIENCE, timeout=PATIENCE) as broker:
                await broker.backend.administer("promote", {"primary_is_down": self.mode == "async"})
        except RunnelError:
            return False
        return True

    async def _turn(self) -> None:
        """The old primary becomes the standby, and is killed while it does."""
        self.primary, self.standby = self.standby, self.primary
        await self.standby.follow(self.primary, rejoin=True)
        for _ in range(self.rng.randint(0, 2)):
            await self._some_time(0.3)
            await self.standby.end()
            await self.standby.follow(self.primary, rejoin=True)
        await self.caught_up()

    async def fail_over(self, found: Outcome, *, stops: bool) -> float:
        """Kill or suspend the primary and promote its standby; when that began."""
        primary, standby, load = self.primary, self.standby, self.load
        before, began = len(load.acked), time.monotonic()
        if stops:
            primary.suspend()
            found.stops += 1
        else:
            await primary.end()
            found.kills += 1
        await standby.ask("promote", {"primary_is_down": self.mode == "async"})
        found.promotion.append(time.monotonic() - began)
        if stops:
            primary.resume()  # it does not know yet that it is none any more
        promoted = began + found.promotion[-1]
        await until(lambda: any(at > promoted for _, at in list(load.acked.values())[before:]))
        found.rto.append(min(at for _, at in list(load.acked.values())[before:] if at > promoted) - began)
        if stops:
            async with asyncio.timeout(PATIENCE):
                while (await primary.figures()).get("role") != "superseded":  # noqa: ASYNC110  # another process's
                    await asyncio.sleep(0.05)
            await primary.end()
        await self._turn()
        return began


OTHERS = (
    Pair.kill_the_standby,
    Pair.suspend_the_standby,
    Pair.kill_the_primary,
    Pair.suspend_the_primary,
    Pair.kill_both,
    Pair.race_promotions,
    Pair.kill_a_promotion,
)
LOSING = (Pair.race_promotions, Pair.kill_a_promotion)  # in async mode


async def trial(
    folder: Path,
    mode: str,
    failovers: int,
    seed: int,
    *,
    others: Sequence[Callable[[Pair], Awaitable[None]]] | int = (),
    lease: float = 1.0,
    publishers: int = 16,
) -> Outcome:
    """So many failovers of one pair, and other things in between; all of it is judged at the end."""
    rng, found, load, times = random.Random(seed), Outcome(mode), Load(publishers, mode), list[Failover]()
    pair = Pair(Node(folder / "a", mode, lease), Node(folder / "b", mode, lease), mode, load, rng, lease)
    nodes = pair.primary, pair.standby
    between = [rng.choice(OTHERS) for _ in range(others)] if isinstance(others, int) else others
    plan: list[Callable[[Pair], Awaitable[None]] | None] = [*between, *[None] * failovers]
    rng.shuffle(plan)
    try:
        await pair.primary.serve()
        await pair.standby.follow(pair.primary)
        await pair.caught_up()
        running = asyncio.ensure_future(load.run(",".join([nodes[0].url, nodes[1].url.partition("//")[2]])))
        for step in plan:
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            began, stops = time.monotonic(), rng.random() < 0.25
            if step is None:
                began = await pair.fail_over(found, stops=stops)
                times.append(Failover(began, time.monotonic(), stops))
                continue
            name = step.__name__.replace("_", " ")
            found.others = found.others + Counter([name])
            await step(pair)
            if step in LOSING:
                times.append(Failover(began, time.monotonic(), True))
            if mode == "async" or rng.random() < 0.5:  # a synchronous standby may be promoted at any time
                await pair.caught_up()
        await pair.caught_up()
        load.ended = True
        await running
        await judge(pair.primary, load, found, times, mode)
    finally:
        for node in nodes:
            if node.process is not None and node.process.returncode is None:
                node.resume()
            await node.end()
    found.acked, found.read, found.settled = len(load.acked), len(load.seen), len(load.settled)
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


class Failover(NamedTuple):
    """When a primary was ended, when it surely had, and how."""

    began: float
    ended: float
    stops: bool


async def judge(primary: Node, load: Load, found: Outcome, times: list[Failover], mode: str) -> None:
    """Read everything, and compare it with what publishers were told."""
    there: dict[Place, str] = {}
    load.history.subscribed("judge", TOPIC, 0)
    async with runnel.open(primary.url, wait=PATIENCE) as broker:
        last = 0
        async for record in everything(broker, TOPIC):
            place, id = (record.epoch, record.offset), record.value.decode()
            last = record.offset + 1
            load.history.saw("judge", record)
            for known in (load.acked.get(place, (id, 0.0))[0], load.seen.get(place, id)):
                if known != id:
                    load.wrong.append(f"{place} was {known}, and is {id}")
            there[place] = id
        left, right = [[record.value.decode() async for record in everything(broker, one)] for one in (LEFT, RIGHT)]
    load.history.ended("judge", TOPIC, last)
    if left != right or len(set(left)) < len(left):
        load.wrong.append(f"transactions are there by half or twice: {set(left) ^ set(right)}")
    if mode == "sync":
        load.wrong += [f"transaction {id} is lost" for id, acked in load.pairs.items() if acked and id not in left]
        load.wrong += [f"{id} at {place} was seen and is lost" for place, id in load.seen.items() if place not in there]
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


async def everything(broker: Any, topic: str) -> AsyncIterator[Any]:
    """All records of a topic."""
    last = await broker.publish(topic, b"the end")
    async with broker.subscribe(topic, start="earliest") as records:
        async for record in records:
            if record.offset == last.offset:
                return
            yield record


def main() -> int:
    """Run trials in both modes, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="failovers in each mode")
    parser.add_argument("--others", type=int, default=50, help="other kills and suspensions in each mode")
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
                    others=chosen.others,
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
