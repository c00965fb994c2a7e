"""A cluster under load whose nodes are killed, frozen, restarted and cut off: what clients did and saw, for the judge.

`python -m tests.cluster.storm FAULTS [SEED] [--namespaces]` runs it for longer, and prints the worst stall of each
fault, beside that of nats-py, which publishes one message after the other to the same cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import nats
from nats.js.api import StreamConfig

import runnel
from runnel import Broker, RunnelError
from runnel.core.errors import ClusterRefused
from runnel.testing.history import History
from tests.cluster.nodes import Node, Nodes
from tests.cluster.partition import Namespaces, Network, Routes
from tests.patience import PATIENCE

TOPICS = ("orders", "payments.eu")
GROUP = "billing"

FROZEN = 10.0  # seconds of SIGSTOP, and of a partition

FAULTS = (
    *("kill the leader", "stop the leader", "rolling restart", "kill all", "kill any", "stop any", "lame duck"),
    *("cut off the leader", "cut off any"),
)


class Pace:
    """How many publishes of one client were acknowledged, and the longest time without any."""

    def __init__(self) -> None:
        self.acked, self.worst, self._last = 0, 0.0, time.monotonic()

    def acknowledged(self) -> None:
        """One more."""
        now = time.monotonic()
        self.worst = max(self.worst, now - self._last)
        self._last = now
        self.acked += 1

    async def moved(self, count: int) -> None:
        """Return when so many more were acknowledged."""
        goal, end = self.acked + count, time.monotonic() + PATIENCE
        while self.acked < goal:
            assert time.monotonic() < end, f"nothing was acknowledged for {PATIENCE} s"
            await asyncio.sleep(0.02)


class Stall(NamedTuple):
    """The longest time without an acknowledged publish around one fault."""

    fault: str
    runnel: float
    nats_py: float | None


class Storm:
    """One run: load, faults, and then everything is read to the end."""

    def __init__(self, nodes: Nodes, seed: int = 1, network: Network | None = None, *, peer: bool = False) -> None:
        self.nodes, self._chance = nodes, random.Random(seed)
        self._network: Network = network or Routes(nodes)
        self.history = History(clock=time.monotonic)
        self.stalls: list[Stall] = []
        self.transactions: dict[int, bool | None] = {}  # by number: applied, or not known
        self.failures: Counter[str] = Counter()
        self._settled: list[tuple[str, int, int]] = []
        self._is_over = False
        self._pace = Pace()
        self._peer: Pace | None = Pace() if peer else None

    async def run(self, faults: list[str]) -> Storm:
        """Start the cluster, load it, and bring the faults upon it one after the other."""
        async with self._network:
            await asyncio.to_thread(self.nodes.start)
            try:
                await self._run(faults)
            finally:
                self.nodes.stop()
        return self

    async def _run(self, faults: list[str]) -> None:
        async with self._open() as writer, self._open() as reader:
            for topic in TOPICS:
                await writer.topic(topic).declare()
            readers = [asyncio.create_task(self._follow(reader, topic)) for topic in TOPICS]
            members = [asyncio.create_task(self._work(reader, f"m{number}")) for number in range(2)]
            publishers = [
                asyncio.create_task(self._publish(writer, topic, f"p{number}"))
                for number, topic in enumerate((*TOPICS, *TOPICS))
            ]
            publishers.append(asyncio.create_task(self._transact(writer)))
            paces = [self._pace] if self._peer is None else [self._pace, self._peer]
            peer = [] if self._peer is None else [asyncio.create_task(self._publish_by_nats_py(self._peer))]
            try:
                for fault in faults:
                    await asyncio.gather(*(pace.moved(100) for pace in paces))
                    for pace in paces:
                        pace.worst = 0.0
                    await getattr(self, "_" + fault.replace(" ", "_"))()
                    await asyncio.gather(*(pace.moved(100) for pace in paces))
                    self.stalls.append(Stall(fault, self._pace.worst, self._peer.worst if self._peer else None))
                self._is_over = True
                await asyncio.wait_for(asyncio.gather(*publishers), PATIENCE)
                await self._read_all(reader)
                await asyncio.wait_for(asyncio.gather(*readers), PATIENCE)
                await self._drained(reader)
            finally:
                for task in (*publishers, *readers, *members, *peer):
                    task.cancel()
                await asyncio.gather(*publishers, *readers, *members, *peer, return_exceptions=True)

    def _open(self) -> Broker:
        return runnel.open(self.nodes.url, monitor=self.nodes.nodes[0].monitor, timeout=60, wait=60)

    # -- the load -----------------------------------------------------------------------------------------------

    async def _publish(self, broker: Broker, topic: str, name: str) -> None:
        number = 0
        while not self._is_over:
            ids = [f"{name}.{number + at}" for at in range(self._chance.choice((1, 1, 3)))]
            number += len(ids)
            for id in ids:
                self.history.intend(topic, id, name)
            keys = [f"k{self._chance.randrange(20)}" for _ in ids]
            try:
                if len(ids) == 1:
                    first = await broker.publish(topic, ids[0], key=keys[0])
                else:
                    first = (await broker.topic(topic).publish_many(ids, keys=keys)).first
            except RunnelError as error:
                self.failures[_named(error)] += 1
                for id in ids:
                    self.history.unknown(topic, id)
                continue
            for at, id in enumerate(ids):
                self.history.acknowledged(topic, id, first.epoch, first.offset + at)
            self._pace.acknowledged()
            await asyncio.sleep(0.01)

    async def _transact(self, broker: Broker) -> None:
        number = 0
        while not self._is_over:
            number += 1
            self.transactions[number] = None
            for topic in TOPICS:
                self.history.intend(topic, f"tx.{number}", "tx")
            try:
                async with broker.transaction() as tx:
                    made = [tx.publish(topic, f"tx.{number}") for topic in TOPICS]
                    tx.mark("tx", number)
            except RunnelError as error:
                self.failures[_named(error)] += 1
                continue
            self.transactions[number] = tx.applied
            if not tx.applied:  # its mark is there: an attempt of its own was committed, whose answer did not come
                for topic in TOPICS:
                    self.history.unknown(topic, f"tx.{number}")
                continue
            for topic, publication in zip(TOPICS, made, strict=True):
                self.history.acknowledged(
                    topic, f"tx.{number}", publication.position.epoch, publication.position.offset
                )
            self._pace.acknowledged()
            await asyncio.sleep(0.02)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _follow(self, broker: Broker, topic: str) -> None:
        """Read a topic from its beginning, through all faults, until the end of the load is seen."""
        name = f"reader of {topic}"
        self.history.subscribed(name, topic, 0)
        async with broker.subscribe(topic, start="earliest") as records:
            async for record in records:
                self.history.saw(name, record)
                if record.value == b"the end":
                    return

    async def _read_all(self, broker: Broker) -> None:
        """Publish the end of each topic, and read the topic again with a reader that saw no fault."""
        for topic in TOPICS:
            self.history.intend(topic, "the end", "end")
            await broker.publish(topic, b"the end")
        for topic in TOPICS:
            name = f"last reader of {topic}"
            self.history.subscribed(name, topic, 0)
            async with broker.subscribe(topic, start="earliest") as records:
                async for record in records:
                    self.history.saw(name, record)
                    if record.value == b"the end":
                        break

    async def _work(self, broker: Broker, member: str) -> None:
        """Work for the group, with acks that are stored before the next record is taken."""
        topic = TOPICS[0]
        self.history.grouped(GROUP, topic)
        async with broker.subscribe(topic, group=GROUP, name=member, prefetch=16, ack_wait=5) as deliveries:
            async for delivery in deliveries:
                now = time.monotonic()
                self.history.leased(
                    GROUP, member, topic, delivery.epoch, delivery.offset, delivery.value, delivery.attempt, now
                )
                try:
                    await delivery.ack(durable=True)
                except RunnelError as error:
                    self.failures[f"ack: {_named(error)}"] += 1
                    continue
                self._settled.append((member, delivery.epoch, delivery.offset))

    async def _drained(self, broker: Broker) -> None:
        """Return when the cluster says that the group has acked everything."""
        least, end = sys.maxsize, 0.0
        while lag := (await broker.backend.ask_group(GROUP, TOPICS[0], "statistics")).lag:
            if lag < least:
                least, end = lag, time.monotonic() + PATIENCE
            assert time.monotonic() < end, f"{lag} records of the group are not acked, and nothing moves"
            await asyncio.sleep(0.1)  # the cluster is asked
        # A group gives each record at least once: JetStream forgets acks when the leader of a consumer is killed. So
        # an ack counts here when all is over; that two members ack one record is not possible at any time.
        for member, epoch, offset in self._settled:
            self.history.acked(GROUP, member, TOPICS[0], epoch, offset)
        self.history.drained(GROUP, TOPICS[0])

    async def _moved(self) -> None:
        """Wait until publishes were acknowledged for a while."""
        await self._pace.moved(100)

    async def _publish_by_nats_py(self, pace: Pace) -> None:
        """Publish one message after the other, each until it is acknowledged, to a stream of its own."""
        client = await nats.connect(
            self.nodes.url.split(","),
            max_reconnect_attempts=-1,
            ping_interval=2,  # else it takes four minutes to find out that a server is frozen
            error_cb=_silent,
        )
        try:
            js, number = client.jetstream(), 0
            await js.add_stream(StreamConfig(name="PEER", subjects=["peer.>"], num_replicas=3))
            while True:
                number += 1
                while True:
                    with suppress(nats.errors.Error):
                        await js.publish("peer.a", b"x", headers={"Nats-Msg-Id": str(number)})
                        break
                    await asyncio.sleep(0.02)
                pace.acknowledged()
                await asyncio.sleep(0.01)
        finally:
            await client.close()

    # -- the faults ---------------------------------------------------------------------------------------------

    async def _kill_the_leader(self) -> None:
        node = await asyncio.to_thread(self.nodes.leader)
        node.kill()
        await self._moved()
        node.start()
        await asyncio.to_thread(node.ready)

    async def _kill_any(self) -> None:
        node = self._chance.choice(self.nodes.nodes)
        node.kill()
        await self._moved()
        node.start()
        await asyncio.to_thread(node.ready)

    async def _kill_all(self) -> None:
        for node in self.nodes.nodes:
            node.kill()
        for node in self.nodes.nodes:
            node.start()
        for node in self.nodes.nodes:
            await asyncio.to_thread(node.ready)

    async def _stop_the_leader(self) -> None:
        node = await asyncio.to_thread(self.nodes.leader)
        await self._stopped(node)

    async def _stop_any(self) -> None:
        await self._stopped(self._chance.choice(self.nodes.nodes))

    async def _stopped(self, node: Node) -> None:
        node.send(signal.SIGSTOP)
        try:
            await self._held()
        finally:
            node.send(signal.SIGCONT)

    async def _cut_off_the_leader(self) -> None:
        await self._cut_off(await asyncio.to_thread(self.nodes.leader))

    async def _cut_off_any(self) -> None:
        await self._cut_off(self._chance.choice(self.nodes.nodes))

    async def _cut_off(self, node: Node) -> None:
        """Part a node from the two others; clients reach all three."""
        self._network.cut(node)
        try:
            await self._held()
        finally:
            self._network.heal(node)

    async def _held(self) -> None:
        """Let a fault last until publishes go on in spite of it, and for 10 seconds at least."""
        end = time.monotonic() + FROZEN
        await self._moved()
        await asyncio.sleep(max(0.0, end - time.monotonic()))

    async def _rolling_restart(self) -> None:
        for node in self.nodes.nodes:
            await asyncio.to_thread(node.stop)
            node.start()
            await asyncio.to_thread(node.ready)
            await self._moved()

    async def _lame_duck(self) -> None:
        node = self._chance.choice(self.nodes.nodes)
        node.send(signal.SIGUSR2)
        await self._moved()
        node.stop()
        node.start()
        await asyncio.to_thread(node.ready)

    # -- the verdict --------------------------------------------------------------------------------------------

    def broken(self) -> list[str]:
        """Every promise that was not kept."""
        found = [str(one) for one in self.history.check().violations]
        seen: dict[str, Counter[str]] = {topic: Counter() for topic in TOPICS}
        for topic in TOPICS:
            name = f"last reader of {topic}"
            for event in self.history.events:
                if getattr(event, "subscriber", None) == name and hasattr(event, "id"):
                    seen[topic][str(event.id)] += 1
        for topic in TOPICS:
            found += [f"{topic}: {id} is stored {times} times" for id, times in seen[topic].items() if times > 1]
        for number, applied in self.transactions.items():
            there = [seen[topic][f"tx.{number}"] for topic in TOPICS]
            if len(set(there)) != 1:
                found.append(f"transaction {number} is there in part: {there}")
            if applied and 0 in there:
                found.append(f"transaction {number} was committed and is not there")
        return found


def _named(error: RunnelError) -> str:
    return f"{error.code} {error.number}" if isinstance(error, ClusterRefused) else error.code


async def _silent(error: Exception) -> None:
    """nats-py says that it is not connected: that is so."""


def say(text: str) -> None:
    """Show a line."""
    sys.stdout.write(f"{text}\n")


def main() -> int:
    """Run many faults, and say how it went."""
    arguments = argparse.ArgumentParser(prog="python -m tests.cluster.storm")
    arguments.add_argument("faults", type=int)
    arguments.add_argument("seed", type=int, nargs="?", default=1)
    arguments.add_argument("--namespaces", action="store_true")
    asked = arguments.parse_args()
    chance = random.Random(asked.seed)
    faults = [FAULTS[at % len(FAULTS)] for at in range(asked.faults)]
    chance.shuffle(faults)
    with tempfile.TemporaryDirectory(prefix="runnel-storm-") as folder:
        nodes = Nodes(Path(folder))
        network = Namespaces(nodes) if asked.namespaces else None
        storm = asyncio.run(Storm(nodes, asked.seed, network, peer=True).run(faults))
    verdict = storm.history.check()
    say(f"{verdict.acknowledged:,} acknowledged, {verdict.deliveries:,} deliveries, {dict(storm.failures)}")
    for fault in FAULTS:
        found = [one for one in storm.stalls if one.fault == fault]
        if found:
            ours, theirs = max(one.runnel for one in found), max(one.nats_py or 0.0 for one in found)
            say(f"  {fault}, {len(found)} x: worst stall {ours:.2f} s, of nats-py {theirs:.2f} s")
    broken = storm.broken()
    say("\n".join(broken[:20]) or "nothing lost, doubled or reordered")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
