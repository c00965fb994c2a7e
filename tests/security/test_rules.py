"""Which topics a rule covers, which parts of a pattern are allowed, and what a claim may fill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption, NotAuthorized
from runnel.core.pattern import matches
from runnel.security.principal import Principal, administrator, authorize, can_see, check, rules_by_action
from runnel.security.rules import Rule, check_template, covered_parts, covers, fill_template, overlap, parse_rule

TOKENS = st.sampled_from(["a", "b", "c"])
NAMES = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, ">"] if rest else tokens),
    st.lists(TOKENS | st.just("*"), min_size=1, max_size=3),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("allowed", "asked", "is_covered"),
    [
        ("orders.>", "orders.eu", True),
        ("orders.>", "orders.eu.x", True),
        ("orders.>", "orders", False),
        ("orders.>", "orders.>", True),
        ("orders.>", "orders.*", True),
        ("orders.*", "orders.>", False),
        ("orders.*", "orders.*", True),
        ("orders.eu", "orders.*", False),
        (">", "a.b", True),
        (">", ">", True),
        ("*", ">", False),
        (">", "$runnel.security", False),
        ("$runnel.>", "$runnel.security", True),
        ("*.security", "$runnel.security", False),
        ("orders", "orderss", False),
    ],
)
def test_a_rule_covers_a_pattern_only_as_a_whole(allowed: str, asked: str, is_covered: bool) -> None:
    assert covers(allowed, asked) is is_covered


@given(PATTERNS, PATTERNS, NAMES)
def test_what_is_covered_matches_nothing_that_is_not_allowed(allowed: str, asked: str, name: str) -> None:
    if covers(allowed, asked) and matches(asked, name):
        assert matches(allowed, name)


@given(PATTERNS, PATTERNS, NAMES)
def test_an_overlap_is_exactly_what_both_match(one: str, other: str, name: str) -> None:
    both = overlap(one, other)
    assert (both is not None and matches(both, name)) == (matches(one, name) and matches(other, name))


def test_the_allowed_parts_of_a_pattern_are_kept_without_those_inside_of_others() -> None:
    assert covered_parts(["orders.>", "orders.eu", "jobs.*", "x"], ">") == ("orders.>", "jobs.*", "x")
    assert covered_parts(["orders.eu.>"], "orders.*.paid") == ("orders.eu.paid",)
    assert covered_parts(["orders.>"], "jobs.>") == ()
    assert covered_parts([">"], "$runnel.security") == ()


@pytest.mark.parametrize("text", ["publish", "publish:", "read:orders", "publish:a..b", "publish:a.>.b", 7, ":x"])
def test_a_rule_that_is_none_is_refused_with_the_right_form(text: object) -> None:
    with pytest.raises(InvalidOption, match=r"publish|token|wildcard|empty|last"):
        parse_rule(text)


def test_a_claim_fills_exactly_one_token() -> None:
    assert fill_template("subscribe:jobs.{sub}.>", {"sub": "u-1"}) == "subscribe:jobs.u-1.>"
    assert fill_template("publish:t.{tenant}", {"tenant": 7}) == "publish:t.7"
    for bad in ("", "a.b", "*", ">", "$x", "a b", "a\x00", "a\n", None, True, 1.5, ["a"], {"a": 1}):
        with pytest.raises(InvalidOption):
            fill_template("subscribe:jobs.{sub}.>", {"sub": bad})
    with pytest.raises(InvalidOption):
        fill_template("subscribe:jobs.{sub}.>", {})


@pytest.mark.parametrize("text", ["subscribe:jobs.x{sub}", "subscribe:jobs.{a}{b}", "subscribe:jobs.{sub", "x:{sub}"])
def test_a_template_has_a_claim_as_a_whole_token(text: str) -> None:
    with pytest.raises(InvalidOption):
        check_template(text, "jwt.allow")


def principal(*rules: str) -> Principal:
    return Principal(name="alice", rules=rules_by_action(parse_rule(one) for one in rules))


def test_nothing_is_allowed_that_no_rule_allows() -> None:
    alice = principal("publish:orders.>", "admin:scratch.>")
    assert authorize(alice, "publish", "orders.eu")
    for action, topic in (("subscribe", "orders.eu"), ("publish", "jobs"), ("publish", "scratch.a"), ("create", "x")):
        assert not authorize(alice, action, topic)
    assert not authorize(principal(), "publish", "x")
    with pytest.raises(NotAuthorized, match=r"it may publish to 'orders\.>'") as refused:
        check(alice, "publish", ">")
    assert (refused.value.principal, refused.value.allowed) == ("alice", ["orders.>"])


def test_admin_implies_nothing_else_and_an_administrator_has_everything() -> None:
    assert not authorize(principal("admin:>"), "publish", "x")
    root = administrator("root")
    assert all(authorize(root, action, "x.y") for action in ("publish", "subscribe", "group", "create", "admin"))
    assert authorize(root, "subscribe", "$runnel.security")
    assert not authorize(root, "publish", "$runnel.security")


def test_a_topic_is_listed_for_those_who_may_do_anything_with_it() -> None:
    assert can_see(principal("publish:a"), "a")
    assert not can_see(principal("publish:a"), "b")
    assert str(Rule("publish", "a.>")) == "publish:a.>"


def test_a_refusal_says_what_a_rule_does_not_cover_and_names_partial_where_it_helps() -> None:
    alice = principal("publish:orders.>", "subscribe:orders.>")
    with pytest.raises(
        NotAuthorized, match=r"may not publish to 'orders'; .*'orders\.>' does not cover 'orders' itself"
    ):
        check(alice, "publish", "orders")
    with pytest.raises(NotAuthorized, match=r"may not subscribe to '>'.*partial=True"):
        check(alice, "subscribe", ">")
    with pytest.raises(
        NotAuthorized, match=r"may not join groups on 'a'.*'group:a' in a role of .* in the file"
    ) as refused:
        check(alice, "group", "a")
    assert "partial" not in str(refused.value)
    with pytest.raises(NotAuthorized) as refused:
        check(alice, "subscribe", "jobs.>")
    assert "partial" not in str(refused.value), "no topic of the pattern is allowed"
