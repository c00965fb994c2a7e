"""What a group can be told, and how long it pauses between attempts."""

from typing import Any

import pytest

from runnel.broker.group.logic.group import BACKOFF, GroupOptions
from runnel.core.errors import InvalidOption


def test_the_defaults_are_those_that_are_documented() -> None:
    options = GroupOptions()
    assert (options.ack_wait, options.max_ack_pending, options.max_deliver) == (30.0, 4096, 20)
    assert (options.backoff, options.jitter, options.dead_letter) == (BACKOFF, 0.1, None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ack_wait", 0),
        ("ack_wait", -1.0),
        ("ack_wait", float("nan")),
        ("ack_wait", "30"),
        ("ack_wait", True),
        ("max_ack_pending", 0),
        ("max_ack_pending", 2.5),
        ("max_ack_pending", True),
        ("max_deliver", 0),
        ("max_deliver", -3),
        ("max_deliver", "5"),
        ("backoff", ()),
        ("backoff", (1.0, -1.0)),
        ("backoff", (float("nan"),)),
        ("backoff", ("1",)),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", float("nan")),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        GroupOptions(**{option: value})
    assert caught.value.option == option


@pytest.mark.parametrize(
    "options", [{"ack_wait": 0.001}, {"max_deliver": 1}, {"backoff": (0,)}, {"jitter": 0}, {"jitter": 1}]
)
def test_the_bounds_themselves_are_allowed(options: dict[str, Any]) -> None:
    ((option, value),) = options.items()
    assert getattr(GroupOptions(**options), option) == value


@pytest.mark.parametrize(("attempts", "pause"), [(1, 1), (2, 5), (3, 30), (4, 30), (100, 30)])
def test_each_attempt_has_its_pause_and_the_last_holds_for_all_that_follow(attempts: int, pause: float) -> None:
    assert GroupOptions(backoff=(1, 5, 30), jitter=0.0).pause(attempts, 0.9) == pause


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 10.0), (0.5, 11.0), (1.0, 12.0)])
def test_jitter_stretches_a_pause_and_never_shortens_it(chance: float, pause: float) -> None:
    assert GroupOptions(backoff=(10.0,), jitter=0.2).pause(1, chance) == pytest.approx(pause)


def test_options_cannot_be_changed_behind_the_groups_back() -> None:
    with pytest.raises(AttributeError):
        GroupOptions().ack_wait = 5.0  # type: ignore[misc]
