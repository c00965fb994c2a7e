"""The memory that slow peers take: counted over all listeners, and bounded."""

from pathlib import Path

import pytest

from runnel.core.errors import LimitExceeded
from runnel.server import memory_budget
from runnel.server.memory_budget import MemoryBudget, memory_available
from runnel.wire.frames import HEADER, FrameKind
from tests.server.native_client import Raw, connected, serving, until

MIB = 1 << 20


class Holder:
    def __init__(self, address: str = "10.0.0.1") -> None:
        self.peer_address = address
        self.told: LimitExceeded | None = None

    def over_budget(self, error: LimitExceeded) -> None:
        self.told = error


def test_a_report_replaces_the_one_before_it() -> None:
    budget, one, other = MemoryBudget(100), Holder(), Holder()
    budget.hold(one, 40)
    budget.hold(one, 60)
    budget.hold(other, 40)
    assert budget.held == 100
    budget.hold(one, 0)
    budget.hold(one, 0)
    assert budget.held == 40
    assert one.told is other.told is None


def test_too_much_closes_the_connection_that_holds_most() -> None:
    budget, small, large, last = MemoryBudget(100), Holder(), Holder(), Holder()
    budget.hold(small, 10)
    budget.hold(large, 80)
    budget.hold(last, 20)
    assert small.told is last.told is None
    assert large.told is not None
    assert (large.told.limit, large.told.value, large.told.allowed) == ("max_held_bytes", 110, 100)
    assert (budget.held, budget.exceeded) == (30, 1)
    budget.hold(large, 0)  # it is gone: that was counted when it was told
    assert budget.held == 30


def test_of_equal_connections_the_newest_is_closed() -> None:
    budget, holders = MemoryBudget(100), [Holder() for _ in range(3)]
    for holder in holders:
        budget.hold(holder, 40)
    assert [holder.told is not None for holder in holders] == [False, False, True]


def test_many_small_connections_of_one_address_do_not_displace_a_large_one_of_another() -> None:
    budget, client = MemoryBudget(1_000), Holder("10.0.0.2")
    budget.hold(client, 400)
    attackers = [Holder() for _ in range(100)]
    for attacker in attackers:
        budget.hold(attacker, 10)
    assert client.told is None
    assert sum(attacker.told is not None for attacker in attackers) == 40


def test_a_holder_that_is_too_large_alone_is_closed() -> None:
    budget, small, large = MemoryBudget(100), Holder(), Holder("10.0.0.2")
    budget.hold(small, 10)
    budget.hold(large, 101)
    assert (small.told, large.told is not None, budget.held) == (None, True, 10)


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/a/b", {"a/memory.max": "12345", "a/b/memory.max": "max"}),
        ("0::/", {"memory.max": "12345"}),
        ("5:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": "12345"}),
        ("5:memory:/elsewhere", {"memory/memory.limit_in_bytes": "12345"}),
    ],
)
def test_the_limit_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str]
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory_budget, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory_budget, "OWN_CGROUPS", tmp_path / "groups")
    assert memory_available() == 12345


def test_without_a_container_the_memory_of_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "OWN_CGROUPS", tmp_path / "not there")
    assert memory_available() > 64 * MIB
    assert MemoryBudget().limit == memory_available() // 4


# -- unfinished frames --------------------------------------------------------------------------------------------


async def begin_frame(raw: Raw, announced: int, sent: int) -> None:
    """Send the first bytes of a PUBLISH frame, and no more."""
    raw.send(HEADER.pack(announced, FrameKind.PUBLISH, 0, 1, raw.new_id()), bytes(sent))
    await raw.writer.drain()


async def test_unfinished_frames_of_many_connections_are_bounded_together() -> None:
    async with serving(max_held_bytes=15 * MIB) as server:  # a buffer is doubled while a frame grows
        assert server.serving is not None
        memory = server.serving.memory
        async with connected(server) as one, connected(server) as two, connected(server) as three:
            await begin_frame(one, 40 * MIB, 3 * MIB)
            await until(lambda: memory.held >= 3 * MIB)
            await begin_frame(two, 40 * MIB, 3 * MIB)
            await until(lambda: memory.held >= 6 * MIB)
            await begin_frame(three, 40 * MIB, 6 * MIB)
            refused = await three.error()
            assert isinstance(refused, LimitExceeded)
            assert refused.limit == "max_held_bytes"
            await until(lambda: server.connections == 2)
            assert memory.held == 8 * MIB
        await until(lambda: not server.connections)
        assert memory.held == 0


async def test_a_frame_that_became_whole_is_not_counted() -> None:
    async with serving(max_held_bytes=10 * MIB) as server, connected(server) as raw:
        assert server.serving is not None
        for _ in range(4):
            await raw.published(raw.publish("a", bytes(5 * MIB)))
        assert server.serving.memory.held == 0
