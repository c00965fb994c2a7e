"""Policies: what a caller may say, and what is refused."""

from typing import Any

import pytest

from runnel.core.errors import InvalidOption
from runnel.core.options import Policy, PolicyKind


def test_the_default_drops_the_oldest() -> None:
    assert Policy.of(None) == Policy() == Policy.drop_oldest()
    assert Policy().kind is PolicyKind.DROP_OLDEST


@pytest.mark.parametrize("kind", list(PolicyKind))
def test_every_policy_can_be_named_by_text(kind: PolicyKind) -> None:
    assert Policy.of(kind.value).kind is kind
    assert str(Policy.of(kind.value)) == kind.value


def test_a_policy_is_taken_as_it_is() -> None:
    policy = Policy.block(timeout=5)
    assert Policy.of(policy) is policy
    assert (policy.kind, policy.timeout) == (PolicyKind.BLOCK, 5)
    assert Policy.disconnect(after=3).after == 3
    assert Policy.drop_newest().kind is PolicyKind.DROP_NEWEST


@pytest.mark.parametrize("policy", ["drop", "BLOCK", "", 5, b"block", ["block"]])
def test_an_unknown_policy_is_refused_with_the_known_ones(policy: Any) -> None:
    with pytest.raises(InvalidOption, match="'drop_oldest', 'drop_newest', 'block', 'disconnect'") as caught:
        Policy.of(policy)
    assert caught.value.option == "policy"


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "5", True])
def test_a_timeout_is_seconds(timeout: Any) -> None:
    with pytest.raises(InvalidOption, match="0 or more"):
        Policy.block(timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 0, 0.5])
def test_block_waits_for_ever_or_so_many_seconds(timeout: float | None) -> None:
    assert Policy.block(timeout=timeout).timeout == timeout


@pytest.mark.parametrize("after", [0, -1, 1.5, "5", True, None])
def test_a_subscription_is_disconnected_after_one_drop_or_more(after: Any) -> None:
    with pytest.raises(InvalidOption, match="1 drop or more"):
        Policy.disconnect(after=after)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Policy().after = 5  # type: ignore[misc]
