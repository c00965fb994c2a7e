"""The options of publish and subscribe: spelled once, checked in one place, refused by name."""

import inspect
from typing import Any

import pytest

import runnel
from runnel.api.topic import Topic
from runnel.core.errors import InvalidName, InvalidOption
from runnel.core.options import (
    OptionKind,
    Policy,
    PublishKeywords,
    PublishOptions,
    SubscribeKeywords,
    SubscribeOptions,
    options_of,
)
from tests.option_samples import PYTHON_WRONG, SAMPLES, beside, sampled

BOTH = pytest.mark.parametrize("options", [PublishOptions, SubscribeOptions])


@BOTH
def test_every_field_says_what_it_is(options: type) -> None:
    assert set(options_of(options)) == set(options.__struct_fields__)  # type: ignore[attr-defined]
    for option in options_of(options).values():
        assert option.about
        assert not option.about.endswith(".")


def test_every_kind_has_a_sample() -> None:
    assert set(SAMPLES) == set(OptionKind)


def test_what_type_checkers_see_are_the_options() -> None:
    assert set(PublishKeywords.__annotations__) == set(options_of(PublishOptions))
    assert set(SubscribeKeywords.__annotations__) == set(options_of(SubscribeOptions)) - {"group", "type"}


@pytest.mark.parametrize("broker", [runnel.Broker, runnel.blocking.Broker])
def test_signatures_show_the_options_one_by_one(broker: Any) -> None:
    assert set(options_of(SubscribeOptions)) <= set(inspect.signature(broker.subscribe).parameters)
    assert set(options_of(PublishOptions)) <= set(inspect.signature(broker.publish).parameters)


def test_a_topic_takes_the_same_options_one_by_one_where_every_nanosecond_counts() -> None:
    given = inspect.signature(Topic.publish).parameters
    defaults = dict(zip(PublishOptions.__struct_fields__, PublishOptions.__struct_defaults__, strict=True))
    assert {name: given[name].default for name in options_of(PublishOptions)} == defaults


@BOTH
def test_a_value_that_is_allowed_is_taken(options: Any) -> None:
    for name, option, sample in sampled(options):
        chosen = options.of(beside(name, option) | {name: sample.value})
        assert getattr(chosen, name) == sample.value
        assert chosen.given()[name] == sample.value


@BOTH
def test_a_value_that_is_not_allowed_is_refused_by_name(options: Any) -> None:
    for name, option, _ in sampled(options):
        if option.kind is OptionKind.TYPE:
            continue  # a codec finds out what it can be
        with pytest.raises((InvalidOption, InvalidName), match=name):
            options.of(beside(name, option) | {name: PYTHON_WRONG[option.kind]})


@BOTH
def test_none_means_that_it_was_not_given(options: Any) -> None:
    assert options.of(dict.fromkeys(options_of(options))) == options()
    assert options().given() == {}


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(InvalidOption, match="did you mean 'buffer'"):
        SubscribeOptions.of({"bufer": 1})
    with pytest.raises(InvalidOption, match="did you mean 'name'"):
        SubscribeOptions.of({"durable": "billing"})  # as NATS calls it
    with pytest.raises(InvalidOption, match="there are key, headers"):
        PublishOptions.of({"xyz": 1})


def test_what_means_nothing_in_a_group_or_without_one_is_refused() -> None:
    for name, option, sample in sampled(SubscribeOptions):
        if option.only == "alone":
            with pytest.raises(InvalidOption, match="it means nothing with group=") as caught:
                SubscribeOptions.of({"group": "g", "name": "n", name: sample.value})
            assert caught.value.option == name
        elif option.only == "group":
            with pytest.raises(InvalidOption, match="it means nothing without group=") as caught:
                SubscribeOptions.of({name: sample.value})
            assert caught.value.option == name


def test_what_is_held_needs_a_name() -> None:
    with pytest.raises(InvalidOption, match="kept under a name"):
        SubscribeOptions(hold=True)
    assert SubscribeOptions(hold=False).hold is False


@pytest.mark.parametrize("bound", ["policy", "buffer", "buffer_bytes", "on_drop", "dead_letter"])
def test_who_says_nothing_about_bounds_may_lag(bound: str) -> None:
    sample = SAMPLES[options_of(SubscribeOptions)[bound].kind]
    assert SubscribeOptions(start="earliest", name="n").lags
    assert not SubscribeOptions(**{bound: sample.value}).lags


@pytest.mark.parametrize(
    ("text", "policy"),
    [("block", Policy.block()), ("block:2.5", Policy.block(2.5)), ("disconnect:3", Policy.disconnect(3))],
)
def test_a_policy_as_text_may_have_its_number(text: str, policy: Policy) -> None:
    assert Policy.of(text) == policy


@pytest.mark.parametrize("text", ["block:", "block:x", "block:-1", "block:nan", "disconnect:0", "drop_oldest:5", ":"])
def test_a_policy_with_a_wrong_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Policy.of(text)
    assert (caught.value.option, caught.value.value) == ("policy", text)
