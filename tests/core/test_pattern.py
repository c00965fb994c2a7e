"""Names, patterns, and which covers which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidName, InvalidPattern
from runnel.core.pattern import MAX_NAME_BYTES, PatternTable, check_name, check_pattern, is_pattern, matches

TOKENS = st.sampled_from(["a", "b", "c", "orders", "é", "x-1"])
NAMES = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
INTERNAL = st.lists(TOKENS, max_size=3).map(lambda tokens: ".".join(["$runnel", *tokens]))
STEPS = st.lists(st.one_of(TOKENS, st.just("*")), max_size=3)
PATTERNS = st.builds(
    lambda first, steps, last: ".".join([*first, *steps, *last]),
    st.sampled_from([[], ["$runnel"]]),
    STEPS,
    st.sampled_from([["a"], ["*"], [">"]]),
)


def covers(pattern: list[str], name: list[str]) -> bool:
    """The rule, token by token, told as a recursion."""
    if not pattern or not name:
        return not pattern and not name
    if pattern == [">"]:
        return True
    return pattern[0] in ("*", name[0]) and covers(pattern[1:], name[1:])


@pytest.mark.parametrize(
    "name", ["a", "orders.eu.paid", "A_b-9", "é.ü", "x" * MAX_NAME_BYTES, "a$b", "a.$b", "日本.語", "a/b", "a:b"]
)
def test_a_name_is_tokens_joined_by_dots(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        (".", "token between dots is empty"),
        ("a..b", "token between dots is empty"),
        (".a", "token between dots is empty"),
        ("a.", "token between dots is empty"),
        ("a b", "' '"),
        ("a\nb", r"'\\n'"),
        ("a\0b", r"'\\x00'"),
        ("a\x7f", r"'\\x7f'"),
        ("a\x85", r"'\\x85'"),
        ("a\u2028b", r"'\\u2028'"),
        ("a\t", r"'\\t'"),
        ("a\n", r"'\\n'"),
        ("x" * 256, "256 bytes long, more than 255"),
        ("é" * 128, "256 bytes long, more than 255"),
        ("\ud800", "not valid Unicode"),
        ("$runnel.x", "internal"),
        ("$", "internal"),
        ("a.*", "patterns"),
        (">", "patterns"),
        ("a*b", "patterns"),
        (7, "of type int"),
        (None, "of type NoneType"),
        (b"a", "of type bytes"),
    ],
)
def test_a_wrong_name_is_refused_with_the_reason(name: object, why: str) -> None:
    with pytest.raises(InvalidName, match=why) as caught:
        check_name(name)
    assert caught.value.name == name


@pytest.mark.parametrize("pattern", ["a", "*", ">", "a.*", "*.b", "a.>", "*.*.>", "$runnel.>", "$runnel.x"])
def test_a_pattern_is_a_name_with_wildcard_tokens(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "empty"),
        ("a..>", "token between dots is empty"),
        (">.a", "'>' is not the last token"),
        ("a.>.b", "'>' is not the last token"),
        (">.>", "'>' is not the last token"),
        ("a*", "must be a whole token"),
        ("a.b>", "must be a whole token"),
        ("**", "must be a whole token"),
        ("a b", "' '"),
        ("x." * 128 + "x", "257 bytes long"),
        ("\udfff.>", "not valid Unicode"),
        (5, "of type int"),
        (None, "of type NoneType"),
    ],
)
def test_a_wrong_pattern_is_refused_with_the_reason(pattern: object, why: str) -> None:
    with pytest.raises(InvalidPattern, match=why) as caught:
        check_pattern(pattern)
    assert caught.value.pattern == pattern


@pytest.mark.parametrize(
    ("text", "expected"), [("a.b", False), ("a.*", True), ("*", True), (">", True), ("a.>", True), ("a.b*", False)]
)
def test_only_wildcard_tokens_make_a_pattern(text: str, expected: bool) -> None:
    assert is_pattern(text) is expected


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a", "a", True),
        ("a", "a.b", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a", False),
        ("a.*", "a.b", True),
        ("a.*.c", "a.b.c", True),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "b.c", False),
        ("*.>", "a", False),
        ("*.>", "a.b", True),
        (">", "$runnel.x", False),
        ("*.x", "$runnel.x", False),
        ("*.>", "$runnel.x", False),
        ("$runnel.>", "$runnel.x", True),
        ("$runnel.*", "$runnel.x", True),
        ("$other.>", "$runnel.x", False),
        ("a.*", "a.$b", True),
    ],
)
def test_a_star_is_one_token_and_an_arrow_the_rest(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@given(PATTERNS, st.one_of(NAMES, INTERNAL))
def test_matching_agrees_with_the_rule_written_as_a_recursion(pattern: str, name: str) -> None:
    spelled_out = not name.startswith("$") or pattern.split(".")[0] == name.split(".")[0]
    assert matches(pattern, name) == (spelled_out and covers(pattern.split("."), name.split(".")))


@given(NAMES)
def test_every_name_covers_itself_and_nothing_else_of_its_length(name: str) -> None:
    assert matches(name, name)
    assert not matches(name, name + ".z")
    assert not matches(name, "z" + name)


@given(st.lists(PATTERNS, max_size=12), st.one_of(NAMES, INTERNAL))
def test_the_table_finds_what_trying_each_pattern_finds(patterns: list[str], name: str) -> None:
    table: PatternTable[int] = PatternTable()
    for item, pattern in enumerate(patterns):
        table.add(pattern, item)
    expected = [item for item, pattern in enumerate(patterns) if matches(pattern, name)]
    assert sorted(table.covering(name)) == expected


@given(st.lists(PATTERNS, min_size=1, max_size=12), st.data())
def test_what_was_removed_is_not_found_and_the_rest_still_is(patterns: list[str], data: st.DataObject) -> None:
    table: PatternTable[int] = PatternTable()
    for item, pattern in enumerate(patterns):
        table.add(pattern, item)
    gone = data.draw(st.sets(st.sampled_from(range(len(patterns)))))
    for item in gone:
        table.remove(patterns[item], item)
    name = data.draw(st.one_of(NAMES, INTERNAL))
    expected = [i for i, pattern in enumerate(patterns) if i not in gone and matches(pattern, name)]
    assert sorted(table.covering(name)) == expected


@given(st.lists(PATTERNS, max_size=12))
def test_a_table_that_was_emptied_holds_nothing(patterns: list[str]) -> None:
    table: PatternTable[int] = PatternTable()
    for item, pattern in enumerate(patterns):
        table.add(pattern, item)
    for item, pattern in enumerate(patterns):
        table.remove(pattern, item)
    assert table._root.children == {}


def test_one_item_under_several_patterns_that_cover_a_name_is_found_once() -> None:
    table: PatternTable[str] = PatternTable()
    for pattern in ("a.*", "a.>", "a.b"):
        table.add(pattern, "x")
    assert table.covering("a.b") == ["x"]
    table.remove("a.*", "x")
    assert table.covering("a.b") == ["x"]
