"""What may be asked for together, and what may not."""

from typing import Any

import pytest

import runnel
from runnel.api.group_subscription import GroupSubscription
from runnel.api.subscription import Subscription


@pytest.mark.parametrize("options", [{"policy": "block"}, {"on_gap": print}, {"on_drop": print}, {"strict": True}])
def test_a_member_of_a_group_has_no_policy_of_its_own(options: dict[str, Any]) -> None:
    with pytest.raises(runnel.InvalidOption, match="means nothing with group="):
        runnel.open().subscribe("t", group="g", **options)


@pytest.mark.parametrize(
    "options",
    [{"prefetch": 1}, {"prefetch_bytes": 1}, {"ack_wait": 1}, {"max_deliver": 1}, {"backoff": [1]}, {"jitter": 0.5}],
)
def test_a_subscriber_alone_has_nothing_to_settle(options: dict[str, Any]) -> None:
    with pytest.raises(runnel.InvalidOption, match="means nothing without group="):
        runnel.open().subscribe("t", **options)


def test_the_group_decides_which_kind_it_is() -> None:
    broker = runnel.open()
    assert type(broker.subscribe("t")) is Subscription
    assert type(broker.subscribe("t", group="g")) is GroupSubscription


def test_a_wrong_pattern_is_refused_before_anything_is_entered() -> None:
    for options in ({}, {"group": "g"}):
        with pytest.raises(runnel.InvalidPattern):
            runnel.open().subscribe("a.>.b", **options)  # type: ignore[call-overload]
