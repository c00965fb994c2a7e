"""Column values of PostgreSQL, from its text format to JSON.

The rule: the JSON of a row is what PostgreSQL's own `row_to_json(row)` gives on a connection with `SESSION_SETTINGS`.
Numbers keep all their digits, and json columns are embedded unchanged. Text that is not of its type raises
ValueError; it never becomes a wrong value.

There is one difference: for a type with a user-defined cast to json, such as hstore, `row_to_json` calls that cast.
Here the value is a string of its text.
"""

from __future__ import annotations

import re
from binascii import Error as HexError
from binascii import unhexlify
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.json import encode as encode_json

from runnel.core.errors import ProtocolError
from runnel.wire.pgoutput import UNCHANGED, ColumnValue

Converter: TypeAlias = Callable[[bytes], bytes]

SESSION_SETTINGS: Final = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
"""Settings of the connection that values are read on. With others PostgreSQL writes other text."""


class PgType(NamedTuple):
    """A type as PostgreSQL's catalog has it."""

    oid: int
    name: str
    kind: str  # a(rray), b(ase), c(omposite), d(omain), e(num), m(ultirange), p(seudo), r(ange)
    element: int = 0  # oid of an array's elements, or of the type that a domain is based on
    delimiter: str = ","  # between values of this type in an array
    attributes: tuple[tuple[str, int], ...] = ()  # name and oid of a composite type's fields


TYPE_QUERY: Final = """
WITH RECURSIVE known AS (
    SELECT oid, typname, typrelid, typdelim,
        CASE WHEN typsubscript = 'pg_catalog.array_subscript_handler'::regproc THEN 'a' ELSE typtype::text END AS kind,
        CASE WHEN typtype = 'd' THEN typbasetype ELSE typelem END AS element
    FROM pg_catalog.pg_type
), fields AS (
    SELECT attrelid, attnum, attname, atttypid FROM pg_catalog.pg_attribute WHERE attnum > 0 AND NOT attisdropped
), wanted(oid) AS (
    SELECT unnest(%s::bigint[])::oid
    UNION
    SELECT part.oid FROM wanted JOIN known USING (oid) CROSS JOIN LATERAL (
        SELECT known.element WHERE known.kind IN ('a', 'd')
        UNION ALL SELECT atttypid FROM fields WHERE known.kind = 'c' AND attrelid = known.typrelid
    ) AS part(oid)
)
SELECT oid::bigint, typname::text, kind, CASE WHEN kind IN ('a', 'd') THEN element ELSE 0 END::bigint, typdelim::text,
    ARRAY(SELECT attname::text FROM fields WHERE kind = 'c' AND attrelid = typrelid ORDER BY attnum),
    ARRAY(SELECT atttypid::bigint FROM fields WHERE kind = 'c' AND attrelid = typrelid ORDER BY attnum)
FROM wanted JOIN known USING (oid)
"""
"""The types with the oids given as an array, and all types that they are made of, as rows for `TypeCatalog.add`."""


class TypeCatalog:
    """The types that are known, by oid. Common ones are known from the start.

    Ask `missing` about the columns of a relation, run `TYPE_QUERY` with the answer, and `add` its rows. A type that
    the server does not have either was dropped after the row was written; its values become strings of their text.

    pgoutput does not say which fields a composite type had when a row was written: change such a type only while no
    row of it waits to be read. A value with another number of fields raises ValueError.
    """

    def __init__(self) -> None:
        self._types = {known.oid: known for known in _COMMON}
        self._json: dict[int, Converter] = {}

    def missing(self, oids: Iterable[int]) -> set[int]:
        """Those that are not known yet."""
        return {oid for oid in oids if oid not in self._types}

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take in rows of `TYPE_QUERY`; a type that is known already is replaced."""
        for oid, name, kind, element, delimiter, names, oids in rows:
            self._types[oid] = PgType(oid, name, kind, element, delimiter, tuple(zip(names, oids, strict=True)))
        self._json.clear()

    def name(self, oid: int) -> str:
        """PostgreSQL's name for the type."""
        found = self._types.get(oid)
        return f"type {oid}" if found is None else found.name

    def to_json(self, oid: int) -> Converter:
        """The function from a value's text to its JSON. It raises ValueError for text of another type."""
        found = self._json.get(oid)
        if found is None:
            found = self._json[oid] = self._converter(self._base(oid))
        return found

    def to_bytes(self, oid: int) -> Converter:
        """The function from a value's text to its bytes: those of a bytea, or the text itself."""
        return _bytea_to_bytes if self._base(oid).oid == _BYTEA else plain_bytes

    def _base(self, oid: int) -> PgType:
        """The type, or the one that a domain is based on in the end."""
        found = self._types.get(oid)
        while found is not None and found.kind == "d":
            found = self._types.get(found.element)
        return found or PgType(oid, self.name(oid), "b")

    def _converter(self, type: PgType) -> Converter:
        if type.oid in _VECTORS:
            return _vector(self.to_json(type.element))
        if type.kind == "a":
            element = self._types.get(type.element)
            return _array(type.name, self.to_json(type.element), element.delimiter if element else ",")
        if type.kind == "c":
            return _composite(type.name, [(name, self.to_json(oid)) for name, oid in type.attributes])
        return _BASE.get(type.oid, _text)


def row_encoder(columns: Sequence[tuple[str, int]], catalog: TypeCatalog) -> Callable[[Sequence[ColumnValue]], bytes]:
    """The function from the values of a row to its JSON object, for columns given by name and type oid.

    A column that is `UNCHANGED` is absent. Ask `TypeCatalog.missing` before: types are those known now. The
    function raises ValueError, which names the column, for a value that is not of its type.
    """
    converters = [(catalog.to_json(oid), _member(name)) for name, oid in columns]
    # None: no call. A third of all columns are integers.
    plan = [(None if convert is plain_bytes else convert, member) for convert, member in converters]

    def encode(values: Sequence[ColumnValue]) -> bytes:
        if len(values) != len(plan):
            raise ProtocolError(f"PostgreSQL sent a row of {len(values)} columns for a relation of {len(plan)}")
        try:
            members = [
                member + (b"null" if value is None else value if convert is None else convert(value))
                for (convert, member), value in zip(plan, values, strict=True)
                if value is not UNCHANGED
            ]
        except ValueError as error:
            raise ValueError(f"column {_failing(values)!r}: {error}") from None
        return b"{%b}" % b",".join(members)

    def _failing(values: Sequence[ColumnValue]) -> str:
        """The name of the column that cannot be converted."""
        for (convert, _), value, (name, _) in zip(converters, values, columns, strict=True):
            if isinstance(value, bytes):
                try:
                    convert(value)
                except ValueError:
                    return name
        raise AssertionError("one of them failed before")

    return encode


# -- From the text of a value to JSON --------------------------------------------------------------------


def plain_bytes(text: bytes) -> bytes:
    """The text itself."""
    return text


def _text(text: bytes) -> bytes:
    try:
        return encode_json(text.decode())
    except UnicodeDecodeError:
        raise _not_utf8(text) from None


def _json(text: bytes) -> bytes:
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            raise _not_utf8(text) from None
    return text


class _Words(dict[bytes, bytes]):
    """The only words that a value may be."""

    def __missing__(self, text: bytes) -> bytes:
        raise _bad(f"one of {b', '.join(self).decode()}", text)


_BOOLEANS = _Words({b"t": b"true", b"f": b"false"})
_NOT_IN_JSON = _Words({b"NaN": b'"NaN"', b"Infinity": b'"Infinity"', b"-Infinity": b'"-Infinity"'})


def _number(text: bytes) -> bytes:
    return text if text[-1:].isdigit() else _NOT_IN_JSON[text]


_DATE = re.compile(rb"\d{4,}-\d\d-\d\d(?: BC)?|-?infinity")
_TIMESTAMP = re.compile(rb"(\d{4,}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)((?:\+00)?)((?: BC)?)")


def _date(text: bytes) -> bytes:
    if text[4:8:3] == b"--" or _DATE.fullmatch(text):
        return b'"%b"' % text
    raise _bad("a date", text, "DateStyle=ISO")


def _timestamp(text: bytes) -> bytes:
    if text[4:14:3] == b"-- :" and text[-3:] != b"+00":
        return b'"%b"' % text.replace(b" ", b"T", 1)
    return _rare_timestamp(text, b"", b"")


def _timestamptz(text: bytes) -> bytes:
    if text[4:14:3] == b"-- :" and text[-3:] == b"+00":
        return b'"%b:00"' % text.replace(b" ", b"T", 1)
    return _rare_timestamp(text, b"+00", b"+00:00")


def _rare_timestamp(text: bytes, zone: bytes, zone_in_json: bytes) -> bytes:
    """Infinite, with a zone and before year 1, or after year 9999; or not as expected."""
    if text in (b"infinity", b"-infinity"):
        return b'"%b"' % text
    found = _TIMESTAMP.fullmatch(text)
    if found is None or found[3] != zone:
        raise _bad("a timestamp in UTC" if zone else "a timestamp", text, "DateStyle=ISO and TimeZone=UTC")
    return b'"%bT%b%b%b"' % (found[1], found[2], zone_in_json, found[4])


def _bytea(text: bytes) -> bytes:
    if text[:2] != b"\\x":
        raise _bad("a bytea", text, "bytea_output=hex")
    return b'"\\%b"' % text


def _bytea_to_bytes(text: bytes) -> bytes:
    if text[:2] == b"\\x":
        try:
            return unhexlify(memoryview(text)[2:])
        except HexError:
            pass
    raise _bad("a bytea", text, "bytea_output=hex")


# -- Values that are made of others ----------------------------------------------------------------------

_BOUNDS = re.compile(rb"(?:\[-?\d+:-?\d+\])+=")  # "[0:2]={…}": JSON does not know where an array begins
_ESCAPED_ELEMENT = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED_FIELD = re.compile(rb'["\\](.)', re.DOTALL)
# A field of a composite value and the comma after it; the last field and the bracket. Only quoted ones hold spaces,
# quotes, commas and brackets. NULL is no text at all.
_FIELD_TEXT = rb'(?:"([^"\\]*+(?:(?:""|\\.)[^"\\]*+)*+)"|([^"\\(),\s]*+))'
_FIELD = re.compile(_FIELD_TEXT + rb",", re.DOTALL)
_LAST_FIELD = re.compile(_FIELD_TEXT + rb"\)\Z", re.DOTALL)
_FLAT_ARRAY = re.compile(rb'\{[^"{}\\\s]+\}')


def _array(name: str, convert: Converter, delimiter: str) -> Converter:
    between = delimiter.encode()
    escaped = re.escape(between)
    # A quoted element, an unquoted one, or a bracket or delimiter.
    token = re.compile(
        rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"|([^"{}\\\s%b]++)|([{}%b])' % (escaped, escaped), re.DOTALL
    ).match

    def to_json(text: bytes) -> bytes:
        if text[:1] == b"[" and (bounds := _BOUNDS.match(text)):
            text = text[bounds.end() :]
        if text == b"{}":
            return b"[]"
        if _FLAT_ARRAY.fullmatch(text):
            elements = text[1:-1].split(between)
            if b"" not in elements:
                return b"[%b]" % b",".join([b"null" if one == b"NULL" else convert(one) for one in elements])
        return b"".join(nested(text))

    def nested(text: bytes) -> Iterable[bytes]:
        """The JSON in pieces, of any number of dimensions and with quoted elements."""
        at = depth = leaves = 0  # `leaves`: the depth of the elements, which is the same for all
        opened = True  # an element or a bracket may open here; else a comma or a bracket has to close
        while found := token(text, at):
            at = found.end()
            quoted, plain, mark = found.groups()
            if mark is None and opened and depth and leaves in (0, depth):
                leaves, opened = depth, False
                if quoted is None:
                    yield b"null" if plain == b"NULL" else convert(plain)
                else:
                    yield convert(_ESCAPED_ELEMENT.sub(rb"\1", quoted) if b"\\" in quoted else quoted)
            elif mark == b"{" and opened and depth < (leaves or _MAX_DIMENSIONS):
                depth += 1
                yield b"["
            elif mark == b"}" and not opened:
                depth -= 1
                yield b"]"
            elif mark == between and not opened and depth:
                opened = True
                yield b","
            else:
                break
            if not depth:
                break
        if depth or opened or at != len(text):
            raise _bad(f"an array of type {name}", text)

    return to_json


def _vector(convert: Converter) -> Converter:
    """For int2vector and oidvector, whose elements stand between spaces."""
    return lambda text: b"[%b]" % b",".join(map(convert, text.split()))


def _composite(name: str, attributes: Sequence[tuple[str, Converter]]) -> Converter:
    patterns = [*[_FIELD] * (len(attributes) - 1), _LAST_FIELD]
    fields = [
        (pattern.match, _member(attribute), convert)
        for pattern, (attribute, convert) in zip(patterns, attributes, strict=False)
    ]

    def to_json(text: bytes) -> bytes:
        members, at = [], 1
        for match, member, convert in fields:
            found = match(text, at)
            if found is None:
                break
            at = found.end()
            quoted, plain = found.groups()
            if plain:
                members.append(member + convert(plain))
            elif quoted is None:
                members.append(member + b"null")
            else:
                members.append(member + convert(_ESCAPED_FIELD.sub(rb"\1", quoted)))
        if len(members) != len(fields) or text[:1] != b"(" or not (fields or text == b"()"):
            raise _bad(f"a value of type {name} with {len(fields)} fields", text)
        return b"{%b}" % b",".join(members)

    return to_json


def _member(name: str) -> bytes:
    return encode_json(name) + b":"


def _shown(text: bytes) -> str:
    return repr(text[:60])[1:] + ("…" if len(text) > 60 else "")


def _not_utf8(text: bytes) -> ValueError:
    return ValueError(
        f"PostgreSQL sent text that is not UTF-8 ({_shown(text)}); "
        "a database with the encoding SQL_ASCII stores such bytes without a check"
    )


def _bad(what: str, text: bytes, settings: str = "") -> ValueError:
    hint = f"; the connection needs {settings}" if settings else ""
    return ValueError(f"PostgreSQL sent {_shown(text)} where {what} was expected{hint}")


# -- Types that every server has -------------------------------------------------------------------------

_BYTEA = 17
_VECTORS = (22, 30)  # int2vector, oidvector
_MAX_DIMENSIONS = 6  # of an array, as PostgreSQL bounds them

_BASE: dict[int, Converter] = {
    16: _BOOLEANS.__getitem__,
    _BYTEA: _bytea,
    20: plain_bytes,  # int8
    21: plain_bytes,  # int2
    23: plain_bytes,  # int4
    114: _json,  # json
    700: _number,  # float4
    701: _number,  # float8
    1082: _date,
    1114: _timestamp,
    1184: _timestamptz,
    1700: _number,  # numeric
    3802: _json,  # jsonb
}

_COMMON = [
    known
    for name, oid, array in (
        ("bool", 16, 1000),
        ("bytea", 17, 1001),
        ("char", 18, 1002),
        ("name", 19, 1003),
        ("int8", 20, 1016),
        ("int2", 21, 1005),
        ("int4", 23, 1007),
        ("text", 25, 1009),
        ("json", 114, 199),
        ("float4", 700, 1021),
        ("float8", 701, 1022),
        ("inet", 869, 1041),
        ("bpchar", 1042, 1014),
        ("varchar", 1043, 1015),
        ("date", 1082, 1182),
        ("time", 1083, 1183),
        ("timestamp", 1114, 1115),
        ("timestamptz", 1184, 1185),
        ("interval", 1186, 1187),
        ("timetz", 1266, 1270),
        ("numeric", 1700, 1231),
        ("uuid", 2950, 2951),
        ("jsonb", 3802, 3807),
    )
    for known in (PgType(oid, name, "b"), PgType(array, f"_{name}", "a", oid))
]
