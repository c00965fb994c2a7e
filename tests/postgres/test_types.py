"""From the text of a value to JSON: every shape that PostgreSQL writes, and an error for what it does not write."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import ProtocolError
from runnel.postgres.types import TypeCatalog, row_encoder
from runnel.wire.pgoutput import UNCHANGED
from tests.nightly import examples
from tests.postgres.texts import Nested, array_text, composite_text

BOOL, BYTEA, INT4, TEXT, JSON, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = (
    16, 17, 23, 25, 114, 701, 1082, 1114, 1184, 1700,
)  # fmt: skip
INTS, TEXTS, JSONS = 1007, 1009, 199
DOMAIN, PAIR, PAIRS, BOX, BOXES, EMPTY, SHORTS, FRAME = range(90_000, 90_008)


@pytest.fixture
def catalog() -> TypeCatalog:
    catalog = TypeCatalog()
    catalog.add(
        [
            (DOMAIN, "limit", "d", NUMERIC, ",", [], []),
            (PAIR, "pair", "c", 0, ",", ['the "text"', "number"], [TEXT, DOMAIN]),
            (PAIRS, "_pair", "a", PAIR, ",", [], []),
            (BOX, "box", "b", 0, ";", [], []),
            (BOXES, "_box", "a", BOX, ",", [], []),
            (EMPTY, "empty", "c", 0, ",", [], []),
            (22, "int2vector", "a", 21, ",", [], []),
            (FRAME, "frame", "d", BYTEA, ",", [], []),
        ]
    )
    return catalog


def test_values_become_the_json_that_row_to_json_gives(catalog: TypeCatalog) -> None:
    cases: list[tuple[int, str, str]] = [
        (BOOL, "t", "true"),
        (BOOL, "f", "false"),
        (INT4, "-12", "-12"),
        (FLOAT8, "1e-05", "1e-05"),
        (FLOAT8, "-Infinity", '"-Infinity"'),
        (NUMERIC, "12345678901234567890.1234567890123456789000", "12345678901234567890.1234567890123456789000"),
        (NUMERIC, "NaN", '"NaN"'),
        (TEXT, 'a "b"\n\\ é\x01', '"a \\"b\\"\\n\\\\ é\\u0001"'),
        (BYTEA, "\\x00ff", '"\\\\x00ff"'),
        (JSON, '{"a" : 1.50}', '{"a" : 1.50}'),
        (DATE, "2024-02-29", '"2024-02-29"'),
        (DATE, "0044-03-15 BC", '"0044-03-15 BC"'),
        (DATE, "12024-02-29", '"12024-02-29"'),
        (DATE, "infinity", '"infinity"'),
        (TIMESTAMP, "2024-02-29 12:00:00.5", '"2024-02-29T12:00:00.5"'),
        (TIMESTAMP, "0044-03-15 12:00:00 BC", '"0044-03-15T12:00:00 BC"'),
        (TIMESTAMP, "12024-02-29 12:00:00", '"12024-02-29T12:00:00"'),
        (TIMESTAMPTZ, "2024-02-29 12:00:00.123456+00", '"2024-02-29T12:00:00.123456+00:00"'),
        (TIMESTAMPTZ, "0044-03-15 12:00:00+00 BC", '"0044-03-15T12:00:00+00:00 BC"'),
        (TIMESTAMPTZ, "-infinity", '"-infinity"'),
        (DOMAIN, "1.50", "1.50"),
        (INTS, "{}", "[]"),
        (INTS, "{1,NULL,-3}", "[1,null,-3]"),
        (INTS, "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
        (INTS, "[0:1][-2:-2]={{1},{2}}", "[[1],[2]]"),
        (TEXTS, r'{a,"b,c","NULL",NULL,"","\\\""}', r'["a","b,c","NULL",null,"","\\\""]'),
        (JSONS, r'{"{\"a\": [1, null]}",3}', '[{"a": [1, null]},3]'),
        (BOXES, "{(1,1),(0,0);(2,2),(0,0)}", '["(1,1),(0,0)","(2,2),(0,0)"]'),
        (PAIR, '("a ""b""\\\\",1.0)', '{"the \\"text\\"":"a \\"b\\"\\\\","number":1.0}'),
        (PAIR, "(,)", '{"the \\"text\\"":null,"number":null}'),
        (PAIR, '("",)', '{"the \\"text\\"":"","number":null}'),
        (PAIRS, r'{"(\"b c\",NaN)",NULL}', '[{"the \\"text\\"":"b c","number":"NaN"},null]'),
        (EMPTY, "()", "{}"),
        (22, "1 -2 3", "[1,-2,3]"),
        (22, "", "[]"),
        (99_999, 'a type "that" was dropped', '"a type \\"that\\" was dropped"'),
    ]  # fmt: skip
    assert [(oid, text, catalog.to_json(oid)(text.encode()).decode()) for oid, text, _ in cases] == cases


@pytest.mark.parametrize(
    ("oid", "text", "says"),
    [
        (BOOL, b"true", "where one of t, f was expected"),
        (NUMERIC, b"nan", "where one of NaN, Infinity, -Infinity was expected"),
        (FLOAT8, b"", "where one of NaN"),
        (TEXT, b"caf\xe9", "not UTF-8 ('caf\\xe9'); a database with the encoding SQL_ASCII"),
        (JSON, b'"caf\xe9"', "not UTF-8"),
        (DATE, b"29.02.2024", "where a date was expected; the connection needs DateStyle=ISO"),
        (DATE, b"", "where a date was expected"),
        (TIMESTAMP, b"29.02.2024 12:00:00", "where a timestamp was expected; the connection needs DateStyle=ISO"),
        (TIMESTAMP, b"2024-02-29 12:00:00+00", "where a timestamp was expected"),
        (TIMESTAMP, b"12024-02-29 12:00:00+00", "where a timestamp was expected"),
        (TIMESTAMP, b"", "where a timestamp was expected"),
        (TIMESTAMPTZ, b"2024-02-29 12:00:00+05:45", "where a timestamp in UTC was expected; the connection needs"),
        (TIMESTAMPTZ, b"2024-02-29 12:00:00", "where a timestamp in UTC was expected"),
        (TIMESTAMPTZ, b"2024-02-29 12:00:00+01 BC", "where a timestamp in UTC was expected"),
        (BYTEA, b"\\000\\377", "where a bytea was expected; the connection needs bytea_output=hex"),
        (PAIR, b"(1)", "where a value of type pair with 2 fields was expected"),
        (PAIR, b"(1,2,3)", "type pair with 2 fields"),
        (PAIR, b"(1,2))", "type pair with 2 fields"),
        (PAIR, b"(1,2)\n", "type pair with 2 fields"),
        (PAIR, b"1,2)", "type pair with 2 fields"),
        (PAIR, b"[1,2)", "type pair with 2 fields"),
        (PAIR, b'("1,2)', "type pair with 2 fields"),
        (PAIR, b'("1"x,2)', "type pair with 2 fields"),
        (PAIR, b"", "type pair with 2 fields"),
        (EMPTY, b"(1)", "type empty with 0 fields"),
        *(
            (TEXTS, text, "where an array of type _text was expected")
            for text in (
                b"", b"{", b"}", b"a", b"{a", b"a}", b"{a}}", b"{{a}", b"{a,}", b"{,a}", b"{a,,b}", b"{,}", b"{{}}",
                b"{}{}", b"{a}{b}", b'{"a}', b'{"a"b}', b'{a"b"}', b"{a b}", b"{{a},b}", b"{a,{b}}", b"{{a}{b}}",
                b"{a}\n", b"{\\}", b"[0:1]{a}", b"[0:1]=", b"[x]={a}", b"{{{{{{{a}}}}}}}",
            )
        ),
    ],
)  # fmt: skip
def test_text_that_the_type_does_not_write_is_an_error(catalog: TypeCatalog, oid: int, text: bytes, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # what it says is looked at below
        catalog.to_json(oid)(text)
    assert says in str(caught.value)


def test_bytes_are_those_of_a_bytea_or_the_text(catalog: TypeCatalog) -> None:
    for oid in (BYTEA, FRAME):
        assert catalog.to_bytes(oid)(b"\\x00FFab") == b"\x00\xff\xab"
        assert catalog.to_bytes(oid)(b"\\x") == b""
        for bad in (b"\\x0", b"\\xzz", b"00", b"\\000", b""):
            with pytest.raises(ValueError, match="where a bytea was expected"):
                catalog.to_bytes(oid)(bad)
    for oid in (TEXT, JSON, INT4, TEXTS, PAIR, 99_999):
        assert catalog.to_bytes(oid)(b'{"caf\xe9"}') == b'{"caf\xe9"}'


def test_a_row_is_an_object_without_its_unchanged_columns(catalog: TypeCatalog) -> None:
    encode = row_encoder([("id", INT4), ('a "text"', TEXT), ("at", TIMESTAMPTZ), ("doc", JSON)], catalog)
    at = b"2024-02-29 12:00:00+00"
    assert encode([b"7", b"x", at, b"[1]"]) == b'{"id":7,"a \\"text\\"":"x","at":"2024-02-29T12:00:00+00:00","doc":[1]}'
    assert encode([b"7", None, None, None]) == b'{"id":7,"a \\"text\\"":null,"at":null,"doc":null}'
    assert encode([UNCHANGED, b"x", UNCHANGED, b"1"]) == b'{"a \\"text\\"":"x","doc":1}'
    assert encode([UNCHANGED] * 4) == b"{}"
    assert row_encoder([], catalog)([]) == b"{}"


def test_an_error_in_a_row_names_the_column(catalog: TypeCatalog) -> None:
    encode = row_encoder([("id", INT4), ("name", TEXT), ("day", DATE)], catalog)
    with pytest.raises(ValueError, match=r"column 'day': PostgreSQL sent '1\.2\.2024' where a date was expected"):
        encode([b"1", b"x", b"1.2.2024"])
    with pytest.raises(ValueError, match=r"column 'name': .* not UTF-8"):
        encode([b"1", b"\xff", None])
    with pytest.raises(ProtocolError, match="a row of 2 columns for a relation of 3"):
        encode([b"1", b"x"])


def test_a_type_is_missing_until_it_is_added_and_the_newest_counts() -> None:
    catalog = TypeCatalog()
    assert catalog.missing([INT4, TEXTS, PAIR, DOMAIN]) == {PAIR, DOMAIN}
    assert catalog.to_json(PAIR)(b"(1,2)") == b'"(1,2)"'
    catalog.add([(PAIR, "pair", "c", 0, ",", ["a", "b"], [INT4, INT4])])
    assert catalog.missing([INT4, PAIR, DOMAIN]) == {DOMAIN}
    assert catalog.to_json(PAIR)(b"(1,2)") == b'{"a":1,"b":2}'
    catalog.add([(PAIR, "pair", "c", 0, ",", ["a", "b", "c"], [INT4, INT4, INT4])])
    assert catalog.to_json(PAIR)(b"(1,2,)") == b'{"a":1,"b":2,"c":null}'


# -- any value -------------------------------------------------------------------------------------------

texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from('"\\{}(),; \t\nnuNULl'), max_size=8
)


@st.composite
def arrays(draw: st.DrawFn) -> list[Nested]:
    """Of up to three dimensions, each part as long as its neighbours; or empty."""
    lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = prod(lengths) if draw(st.integers(0, 9)) else 0
    parts: list[Nested] = [*draw(st.lists(st.none() | texts, min_size=count, max_size=count))]
    for length in lengths[1:] if count else ():
        parts = [parts[at : at + length] for at in range(0, len(parts), length)]
    return parts


@examples(100, 5_000)
@given(arrays(), st.sampled_from(",;"), st.booleans())
def test_any_array_is_read_as_it_was_written(value: list[Nested], delimiter: str, bounds: bool) -> None:
    catalog = TypeCatalog()
    catalog.add([(BOX, "box", "b", 0, delimiter, [], []), (BOXES, "_box", "a", BOX, ",", [], [])])
    text = "[3:4][-1:7]=" * bounds + array_text(value, delimiter)
    assert json.loads(catalog.to_json(BOXES)(text.encode())) == value


@examples(100, 5_000)
@given(st.lists(st.none() | texts, min_size=1, max_size=4), st.lists(st.none() | texts, min_size=1, max_size=3))
def test_any_composite_value_is_read_as_it_was_written(outer: list[str | None], inner: list[str | None]) -> None:
    catalog = TypeCatalog()
    names = [f"a{number}" for number in range(9)]
    fields: dict[str, Any] = dict(zip(names, outer, strict=False))
    parts = dict(zip(names, inner, strict=False))
    catalog.add(
        [
            (PAIR, "inner", "c", 0, ",", [*parts], [TEXT] * len(parts)),
            (PAIRS, "_inner", "a", PAIR, ",", [], []),
            (EMPTY, "outer", "c", 0, ",", [*fields, "in", "array"], [TEXT] * len(fields) + [PAIR, PAIRS]),
        ]
    )
    within = composite_text(inner)
    text = composite_text([*outer, within, array_text([within, None])])
    assert json.loads(catalog.to_json(EMPTY)(text.encode())) == fields | {"in": parts, "array": [parts, None]}


DAMAGE = st.text('"\\{}(),[:]=1aN', max_size=3)


@examples(100, 10_000)
@given(st.sampled_from([TEXTS, PAIR, PAIRS]), st.data())
def test_damaged_text_is_an_error_or_json(oid: int, data: st.DataObject) -> None:
    catalog = TypeCatalog()
    catalog.add([(PAIR, "pair", "c", 0, ",", ["a", "b"], [TEXT, TEXTS]), (PAIRS, "_pair", "a", PAIR, ",", [], [])])
    pair = composite_text([data.draw(texts), array_text(data.draw(arrays()))])
    text = {PAIR: pair, PAIRS: array_text([pair, None]), TEXTS: array_text(data.draw(arrays()))}[oid]
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 3))
    damaged = text[:at] + data.draw(DAMAGE) + text[at + length :]
    try:
        found = catalog.to_json(oid)(damaged.encode())
    except ValueError:
        return
    json.loads(found)
