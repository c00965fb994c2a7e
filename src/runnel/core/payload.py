"""Values, keys and headers of untyped topics, as bytes: bytes, and text as UTF-8. Anything else is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runnel.core.by_reference import REASON, ByReference
from runnel.core.errors import InvalidOption, InvalidValue, TooLarge
from runnel.core.trace_context import TRACEPARENT, is_traceparent

# A header ends up on text protocols (HTTP, NATS): a line break in one would forge another.
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
MAX_HEADERS = 256  # of one record: each is looked at, wherever it goes
MAX_KNOWN_NAMES, LONG_NAME = 1024, 64  # bounds of the cache of valid names
_KNOWN_NAMES: set[str] = set()
_FORBIDDEN = re.compile(r"[\r\n\0\ud800-\udfff]")


def value_bytes(topic: str, value: object) -> bytes:
    """`value` as an untyped topic stores it."""
    return _bytes(topic, "value", value, f"give the topic a type: broker.topic({topic!r}, {type(value).__name__})")


def key_bytes(topic: str, key: object) -> bytes | None:
    """`key` as stored; None stays None."""
    return None if key is None else _bytes(topic, "key", key, "a key is bytes or str")


def _bytes(topic: str, what: str, value: object, advice: str) -> bytes:
    if value.__class__ is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(topic, what, value, f"the text is not valid Unicode: {error.reason}") from None
    if isinstance(value, ByReference):
        raise InvalidValue(topic, what, value, REASON)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)  # a copy: the caller may change its own, and a subclass cannot be packed
    if value is None and what == "value":
        advice = "b'' is an empty value, and None needs a key and a topic with compact=True; else give the topic a type"
    raise InvalidValue(topic, what, value, advice)


def checked_headers(topic: str, headers: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """A copy of `headers`, with names and values checked, and about how many bytes they take."""
    if headers.__class__ is not dict and not isinstance(headers, Mapping):
        raise InvalidValue(topic, "headers", headers, "headers are a mapping of str to str")
    if len(headers) > MAX_HEADERS:
        what = f"the number of headers of a record for {topic!r}"
        raise TooLarge(what, len(headers), "max_headers", MAX_HEADERS)
    weight = 0
    for name, value in headers.items():
        # Printable text has no line break, and is found out much quicker than by an expression.
        if value.__class__ is not str or name not in _KNOWN_NAMES or not value.isprintable():
            _check_header(topic, name, value)
        weight += len(name) + len(value)
    return dict(headers), weight


def _check_header(topic: str, name: object, value: object) -> None:
    """Raise unless this may be a header."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise InvalidValue(topic, "header", value if isinstance(name, str) else name, "headers map str to str")
    if name not in _KNOWN_NAMES:
        _check_header_name(name)
    if _FORBIDDEN.search(value):
        raise InvalidOption(f"headers[{name!r}]", value, "a header's value is one line of Unicode, without NUL")
    if name == TRACEPARENT and not is_traceparent(value):
        raise InvalidOption(
            f"headers[{TRACEPARENT!r}]", value, "expected W3C form 00-<32 hex>-<16 hex>-<2 hex>, ids not zero"
        )


def _check_header_name(name: str) -> None:
    """Raise unless `name` may be the name of a header. A program uses few names: those that passed are remembered."""
    if not HEADER_NAME.fullmatch(name):
        raise InvalidOption("headers", name, "a header's name is letters, digits and -_.~!#$%&'*+^`|")
    if len(_KNOWN_NAMES) < MAX_KNOWN_NAMES and len(name) < LONG_NAME and name != TRACEPARENT:  # its value is checked
        _KNOWN_NAMES.add(name)
