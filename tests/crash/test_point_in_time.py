"""A broker publishes and acks, is archived meanwhile, and is killed: any point of its life can be had again."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.core.record import Record
from runnel.journal.backup.archive import archive
from runnel.journal.backup.archive_catalog import open_catalog
from runnel.journal.backup.restore import Point, restore
from runnel.journal.check.verify import verify
from runnel.journal.read.inspection import Inspection

ROOT = Path(__file__).resolve().parents[2]

# It says what it is about to do and what is done, each with the time. Everything it says is done is on disk.
_WORKER = """
import asyncio, json, random, sys, time
import runnel

dice = random.Random(int(sys.argv[2]))

def say(**what):
    print(json.dumps(what | {"at": time.time_ns() // 1000}), flush=True)

async def main():
    async with runnel.open(sys.argv[1], segment_bytes=16384) as broker:
        async with broker.subscribe("orders", group="billing") as deliveries:
            number = 0
            while True:
                topic = dice.choice(["orders", "jobs", "orders"])
                value = b"%d " % number + dice.randbytes(dice.randrange(400)).hex().encode()
                say(begin=number)
                position = await broker.publish(topic, value)
                say(published=number, topic=topic, offset=position.offset, value=value.decode())
                if topic == "orders":
                    delivery = await anext(deliveries)
                    say(begin=number)
                    await delivery.ack(durable=True)
                    say(acked=delivery.offset)
                number += 1

asyncio.run(main())
"""


class Life:
    """One life of a broker in another process, and what it said."""

    def __init__(self, folder: Path, seed: int) -> None:
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.child = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(folder), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        self.said: list[dict[str, Any]] = []

    def listen(self, publishes: int) -> None:
        """Until so many more records are published."""
        assert self.child.stdout is not None
        while publishes:
            self.said.append(json.loads(self.child.stdout.readline()))
            publishes -= "published" in self.said[-1]

    def kill(self) -> None:
        """As `kill -9` does; what it still said is heard."""
        self.child.kill()
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.endswith("\n"):
                self.said.append(json.loads(line))
        self.child.stdout.close()
        self.child.wait()


def holds(folder: Path) -> tuple[dict[tuple[str, int], str], set[int]]:
    """The records in a folder, and the offsets that the group has settled."""
    with Inspection(folder) as seen:
        records = {(one.topic, one.offset): one.value.decode() for one in seen.read() if isinstance(one, Record)}
        settled = {place for group in seen.groups for place in range(group.floor)}
        settled |= {place for group in seen.groups for first, end in group.settled for place in range(first, end)}
        return records, settled


@pytest.mark.parametrize("seed", [1, 2])
def test_any_point_of_a_brokers_life_can_be_restored(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    said: list[dict[str, Any]] = []
    for number in range(2):
        life = Life(tmp_path / "data", seed * 10 + number)
        try:
            for _ in range(4):
                life.listen(dice.randrange(10, 60))
                done = archive(tmp_path / "data", tmp_path / "archive", hold=True)
                assert done.missed is None
        finally:
            life.kill()
        said += life.said
        archive(tmp_path / "data", tmp_path / "archive")
    [span] = open_catalog(tmp_path / "archive").spans()
    published = [one for one in said if "published" in one]
    acked = [one for one in said if "acked" in one]
    moments = [dice.choice(published)["at"] for _ in range(4)] + [dice.randrange(span.since, span.through)]
    for moment in [max(span.since, min(one, span.through)) for one in moments] + [span.through]:
        target = tmp_path / f"{moment} {time.monotonic_ns()}"
        restore(tmp_path / "archive", target, Point(time=moment))
        records, settled = holds(target)
        for one in published:
            if one["at"] <= moment:
                assert records.pop((one["topic"], one["offset"])) == one["value"]
        begun = {str(one["begin"]) for one in said if "begin" in one and one["at"] <= moment}
        assert len(records) <= 2  # in doubt: it had begun, and nobody was told that it was done
        assert all(value.split(" ")[0] in begun for value in records.values())
        assert {one["acked"] for one in acked if one["at"] <= moment} <= settled
        assert verify(target).whole


def test_a_broker_that_closes_and_opens_again_leaves_no_gap(tmp_path: Path) -> None:
    for number in range(3):
        with runnel.blocking.open(tmp_path / "data", segment_bytes=16384) as broker:
            broker.topic("passing", durable=False).publish(b"takes a sequence that the journal does not see")
            for at in range(50):
                broker.publish("orders", b"%d.%d " % (number, at) + b"x" * 500)
            assert archive(tmp_path / "data", tmp_path / "archive").missed is None
            broker.topic("passing", durable=False).publish(b"and another one")
            broker.publish("orders", b"last")
        assert archive(tmp_path / "data", tmp_path / "archive").missed is None
    restore(tmp_path / "archive", tmp_path / "restored")
    assert holds(tmp_path / "restored") == holds(tmp_path / "data")
    with runnel.blocking.open(tmp_path / "restored") as broker:
        assert broker.publish("orders", b"new").offset > 1 << 31
        with broker.subscribe("orders", start="earliest") as records:
            found = list(islice(records, 154))
    assert found[-1].value == b"new"
    assert not any(one.gap for one in found)
