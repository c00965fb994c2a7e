"""The storage that loses power: what was synced survives, what was not may be found in any state."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count, product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.testing import MemoryStorage, PowerLost, power_loss
from runnel.testing.memory_storage import ENDLESS, MemoryFile


def files(storage: MemoryStorage) -> dict[str, bytes]:
    """All that is in a folder."""
    return {name: storage.open(name).read(0, 1 << 20) for name in storage.names()}


def losses(storage: MemoryStorage, times: int = 200) -> set[tuple[tuple[str, bytes], ...]]:
    """What is found after a loss of power, tried many times."""
    return {tuple(files(storage.after_power_loss(Random(seed))).items()) for seed in range(times)}


def kept(storage: MemoryStorage, name: str, content: bytes) -> MemoryFile:
    """A file that is durable, name and all."""
    file = storage.create(name)
    file.write(0, [content])
    file.sync()
    storage.sync_names()
    return file


def work(storage: MemoryStorage) -> None:
    """A little of everything: thirteen calls, four of them syncs."""
    file = storage.create("a.tmp")
    file.allocate(150)
    file.write(0, [b"head"])
    file.sync()
    storage.rename("a.tmp", "a")
    storage.sync_names()
    file.write(4, [b"x" * 100])
    file.sync()
    file.truncate(104)
    storage.create("b").write(0, [b"b"])
    storage.remove("b")
    storage.sync_names()


CALLS = 13


# --- what survives -------------------------------------------------------------------------------


def test_what_was_synced_survives() -> None:
    storage = MemoryStorage()
    kept(storage, "a", b"abc")
    assert losses(storage) == {(("a", b"abc"),)}


def test_a_synced_file_may_vanish_when_its_name_was_not_synced() -> None:
    storage = MemoryStorage()
    file = storage.create("a")
    file.write(0, [b"abc"])
    file.sync()
    assert losses(storage) == {(), (("a", b"abc"),)}


def test_a_synced_name_says_nothing_about_the_bytes() -> None:
    storage = MemoryStorage()
    storage.create("a").write(0, [b"abc"])
    storage.sync_names()
    assert losses(storage) == {(("a", b""),), (("a", b"\0\0\0"),), (("a", b"abc"),)}


def test_each_page_survives_or_not_on_its_own() -> None:
    storage = MemoryStorage(page=2)
    file = kept(storage, "a", b"aabbcc")
    file.write(0, [b"AABBCC"])
    found = {content for ((_, content),) in losses(storage)}
    assert found == {x + y + z for x in (b"aa", b"AA") for y in (b"bb", b"BB") for z in (b"cc", b"CC")}


def test_a_write_reaches_pages_it_does_not_fill() -> None:
    storage = MemoryStorage(page=4)
    file = kept(storage, "a", b"aaaabbbbcccc")
    file.write(3, [b"XXXXXX"])  # one byte, a whole page, one byte
    found = {content for ((_, content),) in losses(storage)}
    assert found == {x + y + z for x in (b"aaaa", b"aaaX") for y in (b"bbbb", b"XXXX") for z in (b"cccc", b"Xccc")}


def test_any_version_of_a_page_may_be_found() -> None:
    storage = MemoryStorage()
    file = kept(storage, "a", b"00")
    file.write(0, [b"1"])
    file.write(1, [b"2"])
    file.write(0, [b"3"])
    assert {content for ((_, content),) in losses(storage)} == {b"00", b"10", b"12", b"32"}


def test_a_page_may_be_torn_between_sectors_but_not_within() -> None:
    storage = MemoryStorage(page=8, sector=4)
    file = kept(storage, "a", b"aaaabbbb")
    file.write(0, [b"AAAABBBB"])
    file.write(4, [b"CC"])
    found = {content for ((_, content),) in losses(storage)}
    assert found == {first + second for first in (b"aaaa", b"AAAA") for second in (b"bbbb", b"BBBB", b"CCBB")}


def test_a_length_may_be_any_it_had() -> None:
    storage = MemoryStorage()
    file = kept(storage, "a", b"abcdef")
    file.truncate(2)
    file.allocate(4)
    found = {content for ((_, content),) in losses(storage)}
    assert {len(content) for content in found} == {6, 2, 4}
    assert b"abcdef" in found  # nothing happened
    assert b"ab\0\0" in found  # everything did
    assert b"abcd" in found  # the length, without the zeros


def test_an_old_file_created_anew_may_be_found_full() -> None:
    storage = MemoryStorage()
    kept(storage, "a", b"abc")
    storage.create("a")
    assert losses(storage) == {(("a", b"abc"),), (("a", b""),), (("a", b"\0\0\0"),)}


@pytest.mark.parametrize("target", [None, b"old"])
def test_a_rename_is_found_done_or_not_done(target: bytes | None) -> None:
    storage = MemoryStorage()
    kept(storage, "a.tmp", b"new")
    if target is not None:
        kept(storage, "a", target)
    before = tuple(files(storage).items())
    storage.rename("a.tmp", "a")
    assert losses(storage) == {before, (("a", b"new"),)}


def test_a_rename_may_survive_the_creation_it_came_after() -> None:
    storage = MemoryStorage()
    storage.create("a.tmp").sync()
    storage.rename("a.tmp", "a")
    assert losses(storage) == {(), (("a.tmp", b""),), (("a", b""),)}


def test_a_removed_file_may_come_back() -> None:
    storage = MemoryStorage()
    kept(storage, "a", b"abc")
    storage.remove("a")
    assert losses(storage) == {(), (("a", b"abc"),)}


def test_changes_of_names_survive_in_any_order() -> None:
    storage = MemoryStorage()
    for name in "ab":
        storage.create(name)
    storage.sync_names()
    storage.remove("a")
    storage.remove("b")
    assert {tuple(name for name, _ in found) for found in losses(storage)} == {(), ("a",), ("b",), ("a", "b")}


def test_a_file_that_is_only_renamed_keeps_one_of_its_names_even_if_the_old_one_is_reused() -> None:
    storage = MemoryStorage()
    kept(storage, "a", b"first")
    storage.rename("a", "b")
    kept_open = storage.create("a")
    kept_open.write(0, [b"second"])
    kept_open.sync()
    assert losses(storage) == {
        (("a", b"first"),),
        (("b", b"first"),),
        (("a", b"second"), ("b", b"first")),
    }


def test_looking_what_is_left_leaves_the_storage_as_it_is() -> None:
    storage = MemoryStorage()
    work(storage)
    before = files(storage)
    storage.after_power_loss(power_loss.keep_nothing).create("a")
    storage.after_kill().create("a")
    assert files(storage) == before
    storage.open("a", writable=True).write(0, [b"HEAD"])
    assert files(storage)["a"][:4] == b"HEAD"


def test_what_is_found_after_a_loss_is_durable() -> None:
    storage = MemoryStorage(page=64)
    work(storage)
    found = storage.after_power_loss(power_loss.keep_everything)
    assert losses(found) == {tuple(files(storage).items())}


# --- after a kill --------------------------------------------------------------------------------


def test_all_that_was_written_survives_a_kill() -> None:
    storage = MemoryStorage(page=64, crash_at=11)
    with pytest.raises(PowerLost):
        work(storage)
    assert files(storage.after_kill()) == {"a": b"head" + b"x" * 100, "b": b""}


def test_what_survives_a_kill_is_no_more_durable_than_it_was() -> None:
    storage = MemoryStorage()
    file = kept(storage, "a", b"abc")
    file.write(0, [b"ABC"])
    storage.create("b").sync()
    killed = storage.after_kill()
    assert files(killed) == {"a": b"ABC", "b": b""}
    assert losses(killed) == losses(storage)
    killed.open("a").sync()
    killed.sync_names()
    assert losses(killed) == {(("a", b"ABC"), ("b", b""))}
    assert len(losses(storage)) == 4


def test_what_came_before_a_kill_came_before_what_the_next_process_does() -> None:
    storage = MemoryStorage(page=1)
    kept(storage, "a", b"abc").write(0, [b"A"])
    storage.create("b").sync()
    killed = storage.after_kill()
    killed.open("a", writable=True).write(2, [b"C"])
    assert killed.calls == 1
    assert files(killed.after_power_loss(power_loss.keep_after(0))) == {"a": b"abC"}
    assert files(killed.after_power_loss(power_loss.keep_until(0))) == {"a": b"Abc", "b": b""}


# --- the power goes ------------------------------------------------------------------------------


def test_calls_that_change_something_are_counted_and_named() -> None:
    storage = MemoryStorage()
    work(storage)
    files(storage)  # reading does not count
    assert storage.trace == [
        ("create", "a.tmp"),
        ("allocate", "a.tmp"),
        ("write", "a.tmp"),
        ("sync", "a.tmp"),
        ("rename", "a.tmp -> a"),
        ("sync_names", ""),
        ("write", "a.tmp"),
        ("sync", "a.tmp"),
        ("truncate", "a.tmp"),
        ("create", "b"),
        ("write", "b"),
        ("remove", "b"),
        ("sync_names", ""),
    ]
    assert (storage.calls, storage.syncs) == (CALLS, 4)


@pytest.mark.parametrize("midway", [False, True])
@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_the_power_goes_at_the_call_that_is_named_and_stays_away(call: int, midway: bool) -> None:
    storage = MemoryStorage(crash_at=call, midway=midway)
    with pytest.raises(PowerLost) as caught:
        work(storage)
    assert (caught.value.call, storage.calls) == (call, call)
    assert (caught.value.operation, caught.value.name) == storage.trace[-1]
    for ask in (
        storage.names,
        storage.free,
        storage.sync_names,
        lambda: storage.create("c"),
        lambda: storage.open("c"),
    ):
        with pytest.raises(PowerLost):
            ask()
    assert storage.calls == call


def test_open_files_are_dead_too_but_can_be_closed() -> None:
    storage = MemoryStorage(crash_at=2)
    file = storage.create("a")
    with pytest.raises(PowerLost):
        file.write(0, [b"abc"])
    for ask in (lambda: file.read(0, 1), file.size, file.sync, file.map, lambda: file.truncate(0)):
        with pytest.raises(PowerLost):
            ask()
    file.close()


def test_a_loss_of_power_is_never_caught_by_accident() -> None:
    assert not issubclass(PowerLost, Exception)
    lost = PowerLost(3, "write", "a")
    assert (lost.call, lost.operation, lost.name) == (3, "write", "a")
    assert str(lost) == "the power went at call 3: write 'a'"


@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_the_last_call_is_carried_out_only_if_the_power_goes_midway(call: int) -> None:
    before, midway, after = MemoryStorage(crash_at=call), MemoryStorage(crash_at=call, midway=True), MemoryStorage()
    after.crash_at = call + 1
    for storage in (before, midway, after):
        try:
            work(storage)
        except PowerLost:
            pass
    synced = before.trace[-1][0] in ("sync", "sync_names")
    assert files(midway.after_kill()) == files((before if synced else after).after_kill())
    assert losses(midway) == losses(before if synced else after)


# --- syncs that are forgotten, and syncs that come late ------------------------------------------


def test_a_skipped_sync_does_nothing_and_raises_nothing() -> None:
    asked: list[tuple[str, str, int]] = []

    def second(operation: str, name: str, nth: int) -> bool:
        asked.append((operation, name, nth))
        return nth == 3

    storage = MemoryStorage(skip_sync=second)
    file = kept(storage, "a", b"abc")
    file.write(0, [b"ABC"])
    file.sync()
    assert asked == [("sync", "a", 1), ("sync_names", "", 2), ("sync", "a", 3)]
    assert losses(storage) == {(("a", b"abc"),), (("a", b"ABC"),)}
    file.sync()
    assert losses(storage) == {(("a", b"ABC"),)}


def test_a_skipped_sync_of_names_does_nothing() -> None:
    storage = MemoryStorage(skip_sync=lambda operation, name, nth: operation == "sync_names")
    kept(storage, "a", b"abc")
    assert () in losses(storage)


def test_a_delayed_sync_takes_effect_after_the_next_call() -> None:
    storage = MemoryStorage(delay_sync=lambda operation, name, nth: nth == 3)
    file = kept(storage, "a", b"a")
    file.write(0, [b"A"])
    file.sync()
    assert losses(storage) == {(("a", b"a"),), (("a", b"A"),)}  # it reported success all the same
    storage.create("b").sync()
    assert losses(storage) == {(("a", b"A"),), (("a", b"A"), ("b", b""))}


def test_a_delayed_sync_covers_the_next_call_and_none_after_it() -> None:
    storage = MemoryStorage(page=1, delay_sync=lambda operation, name, nth: nth == 3)
    file = kept(storage, "a", b"abc")
    file.write(0, [b"A"])
    file.sync()
    file.write(1, [b"B"])
    file.write(2, [b"C"])
    assert losses(storage) == {(("a", b"ABc"),), (("a", b"ABC"),)}


def test_a_delayed_sync_never_comes_if_the_power_goes_at_the_next_call() -> None:
    storage = MemoryStorage(delay_sync=lambda operation, name, nth: nth == 3, crash_at=7)
    file = kept(storage, "a", b"a")
    file.write(0, [b"A"])
    file.sync()
    with pytest.raises(PowerLost):
        storage.create("b")
    assert losses(storage) == {(("a", b"a"),), (("a", b"A"),)}


def test_a_delayed_sync_of_names_makes_the_next_name_durable_as_well() -> None:
    storage = MemoryStorage(delay_sync=lambda operation, name, nth: True)
    storage.create("a")
    storage.sync_names()
    storage.create("b")
    assert losses(storage) == {(("a", b""), ("b", b""))}


# --- a failed sync -------------------------------------------------------------------------------


def test_after_a_failed_sync_bytes_are_read_but_no_later_sync_saves_them() -> None:
    storage = MemoryStorage()
    file = kept(storage, "a", b"abc")
    file.write(0, [b"ABCDEF"])
    file.forget()
    assert file.read(0, 100) == b"ABCDEF"
    file.sync()
    assert losses(storage) == {(("a", b"abc"),)}
    file.write(6, [b"G"])
    file.sync()
    assert losses(storage) == {(("a", b"abc\0\0\0G"),)}
    assert files(storage.after_kill()) == {"a": b"ABCDEFG"}


def test_after_a_failed_sync_of_names_they_are_seen_but_no_later_sync_saves_them() -> None:
    storage = MemoryStorage()
    kept(storage, "a", b"")
    storage.rename("a", "b")
    storage.forget_names()
    assert storage.names() == ["b"]
    storage.sync_names()
    assert losses(storage) == {(("a", b""),)}
    storage.rename("b", "c")
    storage.sync_names()
    assert losses(storage) == {(("c", b""),)}


# --- a full disk ---------------------------------------------------------------------------------


def test_a_disk_has_room_until_it_is_full() -> None:
    storage = MemoryStorage(capacity=10)
    assert storage.free() == 10
    file = storage.create("a")
    file.allocate(6)
    assert storage.free() == 4
    with pytest.raises(OSError, match="No space left") as caught:
        file.allocate(11)
    assert (caught.value.errno, caught.value.filename, file.size()) == (errno.ENOSPC, "a", 6)
    file.write(0, [b"x" * 6])  # which needs no more room
    with pytest.raises(OSError, match="No space left"):
        file.write(3, [b"y" * 10])
    assert file.read(0, 100) == b"xxx" + b"y" * 7  # as much as there was room for
    assert storage.free() == 0
    storage.remove("a")
    assert storage.free() == 10
    assert MemoryStorage().free() == ENDLESS


def test_the_power_goes_even_if_the_last_call_fails_for_want_of_room() -> None:
    storage = MemoryStorage(capacity=10, crash_at=2, midway=True)
    file = storage.create("a")
    with pytest.raises(OSError, match="No space left"):
        file.allocate(11)
    with pytest.raises(PowerLost, match="call 2: allocate"):
        file.allocate(5)


def test_a_full_disk_is_as_full_after_a_restart() -> None:
    storage = MemoryStorage(capacity=10)
    kept(storage, "a", b"abc")
    assert storage.after_kill().free() == storage.after_power_loss(power_loss.keep_nothing).free() == 7


# --- the worst -----------------------------------------------------------------------------------


def test_the_worst_ends_are_named_and_differ() -> None:
    storage = MemoryStorage(page=64)
    file = kept(storage, "a", b"a" * 128)
    file.write(0, [b"b" * 64])
    file.write(64, [b"c" * 64])
    storage.rename("a", "b")
    old, new = b"a" * 64, [b"b" * 64, b"c" * 64]
    assert {label: files(found) for label, found in storage.worst()} == {
        "keep_nothing": {"a": old + old},
        "keep_everything": {"b": new[0] + new[1]},
        "keep_names": {"b": old + old},
        "keep_names_and_lengths": {"b": old + old},
        "keep_data": {"a": new[0] + new[1]},
        "keep_after(5)": {"b": old + new[1]},
        "keep_until(5)": {"a": new[0] + old},
        "keep_after(6)": {"b": old + old},
        "keep_until(6)": {"a": new[0] + new[1]},
        "keep_after(7)": {"a": old + old},
        "keep_until(7)": {"b": new[0] + new[1]},
    }


def test_a_mapped_file_cannot_change_its_length() -> None:
    storage = MemoryStorage()
    file = kept(storage, "a", b"abc")
    view = file.map()
    with pytest.raises(BufferError):
        file.truncate(1)
    view.release()
    file.truncate(1)


def test_there_is_nothing_to_write_before_the_beginning() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        MemoryStorage().create("a").write(-1, [b"x"])


def test_they_say_what_they_are() -> None:
    storage = MemoryStorage(crash_at=3)
    file = storage.create("a")
    file.write(0, [b"abc"])
    assert repr(storage) == "<MemoryStorage of 1 files after 2 calls>"
    assert repr(file) == "<MemoryFile 'a', 3 bytes>"
    file.close()
    assert repr(file) == "<MemoryFile 'a', 3 bytes, closed>"
    with pytest.raises(PowerLost):
        storage.sync_names()
    assert repr(storage) == "<MemoryStorage of 1 files after 3 calls, without power>"


# --- for any program -----------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("write"), NAMES, SIZES, SIZES),
        st.tuples(st.just("truncate"), NAMES, SIZES),
        st.tuples(st.just("allocate"), NAMES, SIZES),
        st.tuples(st.just("sync"), NAMES),
        st.tuples(st.just("sync_names")),
    ),
    max_size=25,
)
Step = tuple[Any, ...]  # the operation, then what it is given


def carry_out(storage: MemoryStorage, steps: list[Step], seen: Callable[[], None] = lambda: None) -> None:
    """Carry out all steps that can be; every byte written differs from the one written there before."""
    fill = count(1)
    for operation, *facts in steps:
        try:
            if operation in ("create", "remove", "rename", "sync_names"):
                getattr(storage, operation)(*facts)
            elif operation == "write":
                _, at, size = facts
                storage.open(facts[0], writable=True).write(at, [bytes([next(fill) % 255 + 1]) * size])
            else:
                getattr(storage.open(facts[0], writable=True), operation)(*facts[1:])
        except FileNotFoundError:
            continue
        seen()


@given(steps=STEPS, random=st.randoms(use_true_random=False), more=STEPS)
def test_a_folder_that_was_synced_is_found_as_it_was(steps: list[Step], more: list[Step], random: Random) -> None:
    storage = MemoryStorage(page=8, sector=4)
    carry_out(storage, steps)
    for name in storage.names():
        storage.open(name).sync()
    storage.sync_names()
    synced = files(storage)
    assert files(storage.after_power_loss(random)) == synced
    carry_out(storage, [step for step in more if step[0] not in ("sync", "sync_names")])
    assert files(storage.after_power_loss(power_loss.keep_nothing)) == synced
    assert files(storage.after_power_loss(power_loss.keep_everything)) == files(storage)


@given(steps=STEPS, random=st.randoms(use_true_random=False))
def test_every_byte_found_was_there_since_the_last_sync(steps: list[Step], random: Random) -> None:
    """Never a mix of states that could not exist: each byte, and each length, is one the synced file had since."""
    storage = MemoryStorage(page=8, sector=4)
    file = storage.create("a")
    storage.sync_names()
    history: list[bytes] = [b""]

    def seen() -> None:
        if storage.trace[-1] == ("sync", "a"):
            history.clear()
        history.append(file.read(0, 1000))

    carry_out(storage, [(step[0], "a", *step[2:]) for step in steps if step[0] in ("write", "truncate", "sync")], seen)
    (found,) = files(storage.after_power_loss(random)).values()
    assert len(found) in {len(version) for version in history}
    for at, byte in enumerate(found):
        assert byte in {version[at] if at < len(version) else 0 for version in history}


@given(steps=STEPS, more=STEPS, random=st.randoms(use_true_random=False))
def test_a_file_that_was_not_removed_or_replaced_has_one_name(
    steps: list[Step], more: list[Step], random: Random
) -> None:
    storage = MemoryStorage()
    storage.create("a").write(0, [b"the one"])
    storage.open("a").sync()
    storage.sync_names()
    holder = "a"
    for step in steps + more:
        if step[0] == "rename" and step[1] == holder:
            holder = step[2]
        elif holder in step[1:]:
            continue  # which would remove, replace or change it
        carry_out(storage, [step])
        found = list(files(storage.after_power_loss(random)).values())
        assert found.count(b"the one") == 1


@given(steps=STEPS, random=st.randoms(use_true_random=False))
def test_no_name_is_found_that_no_file_ever_had(steps: list[Step], random: Random) -> None:
    storage = MemoryStorage()
    had: set[str] = set()
    carry_out(storage, steps, lambda: had.update(storage.names()))
    assert set(storage.after_power_loss(random).names()) <= had


@given(steps=STEPS, more=STEPS, random=st.randoms(use_true_random=False))
def test_a_kill_changes_nothing_a_loss_of_power_could_tell(steps: list[Step], more: list[Step], random: Random) -> None:
    storage = MemoryStorage(page=8, sector=4)
    carry_out(storage, steps)
    killed = storage.after_kill()
    assert files(killed) == files(storage)
    for where in (storage, killed):
        carry_out(where, more)
    state = random.getstate()
    found = files(storage.after_power_loss(random))
    random.setstate(state)
    assert files(killed.after_power_loss(random)) == found


# --- what it is for ------------------------------------------------------------------------------


def swap(storage: MemoryStorage, content: bytes) -> None:
    """Replace a file as it ought to be done: two syncs, and neither is one too many."""
    file = storage.create("a.tmp")
    file.write(0, [content])
    file.sync()
    storage.rename("a.tmp", "a")
    storage.sync_names()


def broken(**hooks: Callable[[str, str, int], bool]) -> set[str]:
    """Cut the power at each call of two swaps, and in the midst of each; what is found that must not be."""
    wrong: set[str] = set()
    for call, midway in product(range(6, 17), (False, True)):  # each swap has five calls; at 16 all is over
        storage = MemoryStorage(page=8, crash_at=call, midway=midway)
        swap(storage, b"0" * 20)
        storage.skip_sync, storage.delay_sync = hooks.get("skip"), hooks.get("delay")
        done = 0
        try:
            for number in (1, 2):
                swap(storage, b"%d" % number * 20)
                done = number
        except PowerLost:
            pass
        allowed = [b"%d" % number * 20 for number in (done, done + 1)]
        for label, found in storage.worst():
            if files(found).get("a") not in allowed:
                wrong.add(label.partition("(")[0])
    return wrong


def test_a_program_that_syncs_all_it_must_is_never_caught() -> None:
    assert broken() == set()


@pytest.mark.parametrize("hook", ["skip", "delay"])
@pytest.mark.parametrize("sync", [3, 4, 5, 6])
def test_a_program_that_forgets_a_sync_or_syncs_too_late_is_caught(hook: str, sync: int) -> None:
    assert broken(**{hook: lambda operation, name, nth: nth == sync})
