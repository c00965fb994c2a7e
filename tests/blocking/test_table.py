"""A table, and presence, without asyncio."""

import threading

import pytest

import runnel
from tests.patience import PATIENCE


def test_a_table_is_put_got_updated_and_watched() -> None:
    with runnel.blocking.open() as broker:
        table = broker.table("counts", int)
        with table.watch() as changes:
            first = table.put("a", 1)
            assert table.get("a") == 1
            assert table.update("a", lambda n: (n or 0) + 1) == 2
            entry = table.entry("a")
            assert entry is not None
            assert entry.offset == first + 1
            table.delete("a", expected=entry.offset)
            assert table.items() == {}
            assert [next(changes).value for _ in range(3)] == [1, 2, None]


def test_a_watch_waits_for_as_long_as_it_is_asked_to_and_loses_nothing() -> None:
    with runnel.blocking.open() as broker:
        table = broker.table("counts", int)
        with table.watch("a") as changes:
            with pytest.raises(TimeoutError, match=r"'counts' within 0\.01 s"):
                changes.receive(timeout=0.01)
            table.put("a", 1)
            assert changes.receive(timeout=PATIENCE).value == 1


def test_a_watch_ends_with_its_broker() -> None:
    with runnel.blocking.open() as broker:
        table = broker.table("counts", int)
        entered = threading.Event()
        seen: list[int | None] = []

        def follow() -> None:
            with table.watch() as changes:
                entered.set()
                seen.extend(entry.value for entry in changes)

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        assert entered.wait(PATIENCE)
        table.put("a", 1)
    follower.join(PATIENCE)
    assert not follower.is_alive()
    assert seen == [1]


def test_presence_says_who_is_there_and_who_comes_and_goes() -> None:
    with runnel.blocking.open() as broker:
        room = broker.presence("room")
        assert list(room) == []
        with broker.subscribe("room", presence="Ada"), room.watch() as events:
            (ada,) = room
            joined = events.receive(timeout=PATIENCE)
            assert (ada.presence, joined.event, joined.member) == ("Ada", "join", ada)
