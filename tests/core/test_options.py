"""The options of a topic, refused by name when they make no sense."""

from typing import Any

import pytest

from runnel.core.errors import InvalidOption
from runnel.core.options import Policy, PolicyKind, TopicOptions


def test_what_was_not_said_is_the_default_of_the_place() -> None:
    assert TopicOptions.of({}).given() == {}
    assert TopicOptions.of({"retention_count": 5, "durable": None}).given() == {"retention_count": 5}


def test_every_option_of_the_design_is_taken() -> None:
    options = {
        "durable": True,
        "retention_age": 3600.5,
        "retention_bytes": 1024,
        "retention_count": 10,
        "compact": True,
        "compression": "zstd",
        "encoding": "msgpack",
        "dead_letter": "orders.dead",
        "max_deliver": 5,
        "backoff": (1, 5.5),
    }
    assert TopicOptions.of(options).given() == options


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("retention_cuont", "retention_count"),
        ("retension_age", "retention_age"),
        ("deadletter", "dead_letter"),
        ("maxlen", "retention_count"),  # as Redis calls it
        ("max_retries", "max_deliver"),  # as Celery does
    ],
)
def test_an_unknown_option_suggests_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(InvalidOption, match=f"did you mean '{right}'") as caught:
        TopicOptions.of({wrong: 1})
    assert caught.value.option == wrong


def test_an_unknown_option_that_resembles_none_is_refused_all_the_same() -> None:
    with pytest.raises(InvalidOption, match=r"a topic has no such option; there are durable"):
        TopicOptions.of({"xyz": 1})


@pytest.mark.parametrize("name", ["retention_age", "retention_bytes", "retention_count", "max_deliver"])
@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), [1]])
def test_a_bound_is_a_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match="above 0") as caught:
        TopicOptions.of({name: value})
    assert caught.value.option == name


@pytest.mark.parametrize("name", ["retention_bytes", "retention_count", "max_deliver"])
@pytest.mark.parametrize("value", [1.5, 2.0, float("inf")])
def test_a_count_is_a_whole_number(name: str, value: float) -> None:
    with pytest.raises(InvalidOption, match="whole number above 0"):
        TopicOptions.of({name: value})


@pytest.mark.parametrize("backoff", [(), (-1,), ("1",), (True,), (float("nan"),), "15", 5])
def test_a_backoff_is_pauses_in_seconds(backoff: Any) -> None:
    with pytest.raises(InvalidOption, match="pauses in seconds"):
        TopicOptions.of({"backoff": backoff})


def test_a_list_of_pauses_becomes_a_tuple() -> None:
    assert TopicOptions.of({"backoff": [1, 2]}).backoff == (1, 2)


@pytest.mark.parametrize("name", ["zstd", "lz4", None])
def test_a_known_compression_is_taken(name: str | None) -> None:
    assert TopicOptions.of({"compression": name}).compression == name


@pytest.mark.parametrize(("wrong", "near"), [("zst", "zstd"), ("ZSTD", "zstd"), ("lz5", "lz4")])
def test_an_unknown_compression_suggests_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(InvalidOption, match=f"did you mean '{near}'") as caught:
        TopicOptions.of({"compression": wrong})
    assert caught.value.option == "compression"


@pytest.mark.parametrize("wrong", ["brotli", "", 5, True, ["zstd"]])
def test_a_compression_that_resembles_none_is_refused_all_the_same(wrong: object) -> None:
    with pytest.raises(InvalidOption, match=r"expected 'zstd' or 'lz4'$"):
        TopicOptions.of({"compression": wrong})


@pytest.mark.parametrize("name", ["durable", "compact"])
@pytest.mark.parametrize("value", [1, 0, "no", "False", []])
def test_a_yes_or_no_is_true_or_false_and_nothing_like_it(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match="expected True or False") as caught:
        TopicOptions.of({name: value})
    assert caught.value.option == name


@pytest.mark.parametrize("value", ["JSON", "pickle", "", 1, ["json"]])
def test_an_encoding_is_one_of_two(value: Any) -> None:
    with pytest.raises(InvalidOption, match="'json' or 'msgpack'") as caught:
        TopicOptions.of({"encoding": value})
    assert caught.value.option == "encoding"


@pytest.mark.parametrize("value", ["", "a b", "dead.*", ">", "$dead", 5, True])
def test_a_dead_letter_topic_is_a_topic_name(value: Any) -> None:
    with pytest.raises(InvalidOption, match="expected the name of a topic") as caught:
        TopicOptions.of({"dead_letter": value})
    assert caught.value.option == "dead_letter"


def test_options_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TopicOptions().retention_count = 5  # type: ignore[misc]


# -- Policies: what a caller may say, and what is refused ----------------------------------------------------


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
