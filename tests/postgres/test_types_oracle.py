"""A row's JSON is what PostgreSQL's own `row_to_json` gives: any values of many types, on real servers."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.postgres.types import _COMMON, SESSION_SETTINGS, TYPE_QUERY, PgType, TypeCatalog, row_encoder
from runnel.wire.pgoutput import Insert, Relation, decode_message
from tests.nightly import examples
from tests.postgres.conftest import Database
from tests.postgres.texts import Nested, array_text, composite_text

Text = st.SearchStrategy[str]

OTHER_SETTINGS = {
    "TimeZone": "Asia/Kathmandu",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-5",
}
"""Of the database: those of the session have to count."""

LABELS = ["plain", 'a "b"', "back\\slash", "ünï", "com,ma", "(", "{}", "NULL", " "]

TYPES = f"""
CREATE TYPE mood AS ENUM ({", ".join(f"'{label}'" for label in LABELS)});
CREATE DOMAIN amount AS numeric CHECK (value <> 13);
CREATE DOMAIN small_amount AS amount;
CREATE DOMAIN moment AS timestamptz;
CREATE DOMAIN names AS text[];
CREATE TYPE inner_part AS ("the name" text, gone int, at moment, doc jsonb, moods mood[]);
ALTER TYPE inner_part DROP ATTRIBUTE gone;
CREATE TYPE outer_part AS (part inner_part, parts inner_part[], amount small_amount, flag bool);
CREATE DOMAIN outer_domain AS outer_part;
CREATE TYPE single AS ("only" text);
CREATE TYPE nothing AS ();
"""

# -- text that PostgreSQL reads as a value of a type -----------------------------------------------------

texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("\"\\{}(),; \t\n'nulNUL"), max_size=10
)
shorts = st.integers(-(2**15), 2**15 - 1).map(str)
ints = st.integers(-(2**31), 2**31 - 1).map(str)
longs = st.integers(-(2**63), 2**63 - 1).map(str)
not_numbers = st.sampled_from(["NaN", "Infinity", "-Infinity"])
numerics = st.one_of(
    st.decimals(-(10**30), 10**30, places=25).map(str),
    st.tuples(st.integers(-(10**50), 10**50), st.integers(-60, 60)).map(lambda one: f"{one[0]}e{one[1]}"),
    not_numbers,
)
floats = st.floats(allow_nan=False, allow_infinity=False).map(repr) | not_numbers
small_floats = st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr) | not_numbers
uuids = st.uuids().map(str)
byteas = st.binary(max_size=12).map(lambda data: "\\x" + data.hex())
ips = st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(lambda one: f"{one[0]}/{one[1]}") | st.ip_addresses(
    v=6
).map(str)
bits = st.text("01", min_size=1, max_size=12)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
jsons = st.tuples(documents, st.booleans(), st.sampled_from([None, 1])).map(
    lambda one: json.dumps(one[0], ensure_ascii=one[1], indent=one[2])
)


@st.composite
def dates(draw: st.DrawFn, last_year: int = 5_874_896) -> str:
    year = draw(st.integers(1, 9999) | st.integers(1, last_year))
    day = f"{year:04}-{draw(st.integers(1, 12)):02}-{draw(st.integers(1, 28)):02}"
    return f"{day} BC" if year < 4_700 and draw(st.booleans()) else day


@st.composite
def times(draw: st.DrawFn) -> str:
    hour, minute, second = (draw(st.integers(0, end)) for end in (23, 59, 59))
    fraction = draw(st.just("") | st.text(string.digits, min_size=1, max_size=6).map(lambda digits: f".{digits}"))
    return f"{hour:02}:{minute:02}:{second:02}{fraction}"


@st.composite
def timestamps(draw: st.DrawFn, zone: bool = False) -> str:
    day, _, before_christ = draw(dates(294_275)).partition(" ")
    offset = draw(st.sampled_from(["+00", "+05:45", "-12", "+14"])) if zone else ""
    return f"{day} {draw(times())}{offset} {before_christ}".strip()


infinite = st.sampled_from(["infinity", "-infinity"])
moments = timestamps(zone=True) | infinite


@st.composite
def intervals(draw: st.DrawFn) -> str:
    signs = [draw(st.sampled_from(["", "-"])) for _ in range(4)]
    years, months, days = (draw(st.integers(0, 200)) for _ in range(3))
    return f"{signs[0]}{years} years {signs[1]}{months} mons {signs[2]}{days} days {signs[3]}{draw(times())}"


@st.composite
def ranges(draw: st.DrawFn) -> str:
    low, high = sorted((draw(st.integers(-1_000, 1_000)), draw(st.integers(-1_000, 1_000))))
    brackets = draw(st.sampled_from(["[]", "[)", "(]", "()"]))
    return f"{brackets[0]}{draw(st.sampled_from([low, '']))},{draw(st.sampled_from([high, '']))}{brackets[1]}"


@st.composite
def arrays(draw: st.DrawFn, elements: Text, delimiter: str = ",") -> str:
    """Empty, flat, or of two dimensions with bounds of their own."""
    rows, width = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    cells = [[draw(st.none() | elements) for _ in range(width)] for _ in range(rows)]
    if rows == 1:
        return array_text([*cells[0]], delimiter)
    nested: list[Nested] = [[*row] for row in cells]
    first = draw(st.sampled_from([1, 0, -2]))
    bounds = f"[{first}:{first + rows - 1}][1:{width}]=" if rows else ""
    return bounds + array_text(nested, delimiter)


moods = st.sampled_from(LABELS)
amounts = numerics.filter(lambda text: float(text) != 13)
boxes = st.tuples(*[st.integers(-9, 9)] * 4).map("({0[0]},{0[1]}),({0[2]},{0[3]})".format)
inner_parts = st.tuples(st.none() | texts, st.none() | moments, st.none() | jsons, arrays(moods)).map(composite_text)
outer_parts = st.tuples(st.none() | inner_parts, arrays(inner_parts), st.none() | amounts, st.sampled_from("tf")).map(
    composite_text
)

COLUMNS: dict[str, Text] = {
    "bool": st.sampled_from("tf"),
    "int2": shorts,
    "int4": ints,
    "int8": longs,
    "float4": small_floats,
    "float8": floats,
    "numeric": numerics,
    "numeric(12,4)": st.decimals(-(10**7), 10**7, places=4).map(str),
    "money": ints,
    "oid": st.integers(0, 2**32 - 1).map(str),
    '"char"': st.sampled_from(string.ascii_letters),
    "name": texts,
    "text": texts,
    "varchar(20)": texts,
    "char(12)": texts,
    "date": dates() | infinite,
    "time": times(),
    "timetz": times().map("{}+05:45".format),
    "timestamp": timestamps() | infinite,
    "timestamptz": moments,
    "interval": intervals(),
    "json": jsons,
    "jsonb": jsons,
    "uuid": uuids,
    "bytea": byteas,
    "inet": ips,
    "cidr": st.ip_addresses(v=6).map(str),
    "macaddr": st.integers(0, 2**48 - 1).map("{:012x}".format),
    "varbit": bits,
    "point": st.tuples(floats, floats).map("({0[0]},{0[1]})".format),
    "box": boxes,
    "int4range": ranges(),
    "int4multirange": st.lists(ranges(), max_size=3).map(lambda some: "{" + ",".join(some) + "}"),
    "tstzrange": moments.map('["{}",)'.format),
    "tsvector": st.lists(st.text(string.ascii_letters, min_size=1, max_size=5), max_size=3).map(" ".join),
    "int2vector": st.lists(shorts, max_size=3).map(" ".join),
    "oidvector": st.lists(st.integers(0, 99).map(str), max_size=3).map(" ".join),
    "mood": moods,
    "small_amount": amounts,
    "moment": moments,
    "names": arrays(texts),
    "outer_part": outer_parts,
    "outer_domain": outer_parts,
    "single": st.tuples(st.none() | texts).map(composite_text),
    "nothing": st.just("()"),
    "bool[]": arrays(st.sampled_from("tf")),
    "int4[]": arrays(ints),
    "float8[]": arrays(floats),
    "numeric[]": arrays(numerics),
    "text[]": arrays(texts),
    "timestamp[]": arrays(timestamps() | infinite),
    "timestamptz[]": arrays(moments),
    "date[]": arrays(dates()),
    "jsonb[]": arrays(jsons),
    "json[]": arrays(jsons),
    "bytea[]": arrays(byteas),
    "mood[]": arrays(moods),
    "box[]": arrays(boxes, ";"),
    "moment[]": arrays(moments),
    "names[]": arrays(arrays(texts)),
    "outer_part[]": arrays(outer_parts),
    "int4range[]": arrays(ranges()),
}
NAMES = [f'c{number} "{kind[:4]}"' for number, kind in enumerate(COLUMNS)]
QUOTED = ['"' + name.replace('"', '""') + '"' for name in NAMES]

rows = st.tuples(*[st.none() | values for values in COLUMNS.values()])


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.dsn, autocommit=True) as before:
        for name, value in OTHER_SETTINGS.items():
            before.execute(f"ALTER DATABASE {database.name} SET {name} = '{value}'")
    options = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
    with psycopg.connect(database.dsn, options=options, autocommit=True) as connection:
        yield connection


def exact(text: str | bytes) -> Any:
    """Parsed JSON, with the digits of each number, and the order and doubles of keys."""
    return json.loads(text, parse_int=lambda digits: ("number", digits), parse_float=lambda digits: ("number", digits),
                      object_pairs_hook=lambda pairs: ("object", pairs))  # fmt: skip


def test_a_row_is_what_row_to_json_gives(connection: psycopg.Connection[Any]) -> None:
    connection.execute(TYPES)
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(QUOTED, COLUMNS, strict=True))
    connection.execute(f"CREATE TABLE things (id serial PRIMARY KEY, {columns})")
    connection.execute("CREATE PUBLICATION p FOR TABLE things")
    connection.execute("SELECT pg_create_logical_replication_slot('types', 'pgoutput')")
    insert = f"INSERT INTO things ({', '.join(QUOTED)}) VALUES ({', '.join(['%s'] * len(QUOTED))})"

    @examples(15, 500)
    @given(rows)
    def insert_any_row(row: tuple[str | None, ...]) -> None:
        connection.execute(insert, row)

    insert_any_row()

    changes = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('types', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'p')"
    )
    messages = [decode_message(data) for (data,) in changes]
    relation = next(message for message in messages if isinstance(message, Relation))
    catalog = TypeCatalog()
    missing = catalog.missing(column.type_oid for column in relation.columns)
    catalog.add(connection.execute(TYPE_QUERY, [[*missing]]).fetchall())
    assert catalog.missing(missing) == set()
    encode = row_encoder([(column.name, column.type_oid) for column in relation.columns], catalog)
    found = [exact(encode(message.new)) for message in messages if isinstance(message, Insert)]
    expected = connection.execute("SELECT row_to_json(things)::text FROM things ORDER BY id").fetchall()
    assert len(found) == len(expected) >= 15
    for ours, (theirs,) in zip(found, expected, strict=True):
        assert ours == exact(theirs)


def test_the_types_known_from_the_start_are_those_of_the_server(connection: psycopg.Connection[Any]) -> None:
    found = connection.execute(TYPE_QUERY, [[known.oid for known in _COMMON]]).fetchall()
    types = {
        PgType(oid, name, kind, element, delimiter, tuple(zip(names, oids, strict=True)))
        for oid, name, kind, element, delimiter, names, oids in found
    }
    assert types == {*_COMMON}


def test_the_examples_of_the_reference_hold(connection: psycopg.Connection[Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "postgres-values.md").read_text()
    table = re.findall(r"^\| `(.+)` \| `(.+)` \|$", page, re.MULTILINE)
    assert len(table) >= 15
    catalog = TypeCatalog()
    for value, expected in table:
        result = connection.execute(f"SELECT {value} AS v").pgresult
        assert result is not None
        oid, text = result.ftype(0), result.get_value(0, 0)
        assert text is not None
        catalog.add(connection.execute(TYPE_QUERY, [[*catalog.missing([oid])]]).fetchall())
        assert catalog.to_json(oid)(text).decode() == expected
        theirs = connection.execute(f"SELECT row_to_json(t)::text FROM (SELECT {value} AS v) AS t").fetchone()
        assert theirs is not None
        assert exact(f'{{"v":{expected}}}') == exact(theirs[0])
