"""Groups have their turns soon, in order, and not for long at a time."""

import asyncio
from collections.abc import Callable

import pytest

from runnel.broker.group import turns
from runnel.broker.group.turns import GroupTurns
from runnel.runtime.loop_owner import LoopOwner


def make() -> GroupTurns:
    loop_owner = LoopOwner(lambda loop: None, lambda: None, entered=True)
    loop_owner.loop = asyncio.get_running_loop()
    return GroupTurns(loop_owner)


def note(seen: list[str], name: str) -> Callable[[], None]:
    return lambda: seen.append(name)


async def test_all_have_their_turn_in_the_next_iteration_in_the_order_they_were_woken() -> None:
    made, seen = make(), list[str]()
    for name in "abc":
        assert made.add(note(seen, name))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == ["a", "b", "c"]


async def test_other_work_of_the_loop_goes_on_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLICE", -1.0)
    made, seen = make(), list[str]()
    for name in "abc":
        made.add(note(seen, name))
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append("other")
    assert seen == ["a", "other", "b", "other", "c", "other"]


async def test_a_group_that_is_woken_in_its_turn_has_the_next_one_in_the_next_iteration() -> None:
    made, seen = make(), list[str]()

    def again() -> None:
        seen.append("again")
        made.add(again)

    made.add(again)
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append("other")
    assert seen == ["again", "other"] * 3


async def test_an_error_in_one_turn_is_reported_and_spares_the_others() -> None:
    made, seen, errors = make(), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told["exception"]))
    error = ZeroDivisionError()

    def fail() -> None:
        raise error

    made.add(fail)
    made.add(note(seen, "b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (seen, errors) == (["b"], [error])
