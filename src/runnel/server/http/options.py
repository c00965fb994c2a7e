"""The options of `publish` in request headers, and of `subscribe` in the query of `GET /events`.

Names, readers and OpenAPI schemas come from the fields of the structs in `core.options`: `expected_offset` of
`PublishOptions` is `Runnel-Expected-Offset`, `buffer` of `SubscribeOptions` is `?buffer=`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from runnel.core.errors import InvalidOption
from runnel.core.options import (
    Option,
    OptionKind,
    Policy,
    PolicyKind,
    PublishOptions,
    SubscribeOptions,
    check_message_id,
    options_of,
)

Json = dict[str, Any]

_SECONDS = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,9})?")
_WHOLE = re.compile(r"[0-9]{1,18}")
_WHOLE_SCHEMA: Json = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}


def header_of(name: str) -> str:
    """The request header that says an option of `publish`."""
    return options_of(PublishOptions)[name].http_header or f"Runnel-{name.replace('_', '-').title()}"


def publish_headers() -> dict[str, Option]:
    """The options of `publish` that have a header each, by name. The record's own headers have one for each of them."""
    return {name: option for name, option in options_of(PublishOptions).items() if option.kind in _READ}


def event_options() -> dict[str, Option]:
    """The options of `subscribe` that `GET /events` takes; without `start`, which may count from the end there."""
    known = options_of(SubscribeOptions)
    return {name: option for name, option in known.items() if option.in_events and name != "start"}


def option_reader(shown: str, option: Option) -> Callable[[str], Any]:
    """Reads the value of an option that comes as text; `shown` is what errors call it."""
    return partial(_READ[option.kind], shown)


def read_event_options(said: Mapping[str, str | None]) -> dict[str, Any]:
    """The options of a stream, by name, from the parameters of a request."""
    given = {
        name: option_reader(name, option)(text)
        for name, option in event_options().items()
        if (text := said.get(name)) is not None
    }
    if isinstance(policy := given.get("policy"), Policy) and policy.kind is PolicyKind.BLOCK:
        why = "a GET request does not make publishers wait; subscribe over the websocket"
        raise InvalidOption("policy", said["policy"], why)
    return SubscribeOptions.of(given).given()


def schema_of(option: Option) -> Json:
    """The format of an option's text, for OpenAPI."""
    return _SCHEMAS[option.kind]


def _key(_: str, text: str) -> bytes:
    return unquote_to_bytes(text)


def _message_id(shown: str, text: str) -> str:
    return check_message_id(shown, text[1:-1] if len(text) > 2 and text[0] == text[-1] == '"' else text)


def _seconds(shown: str, text: str) -> float:
    if not _SECONDS.fullmatch(text):
        raise InvalidOption(shown, text[:64], "expected seconds, such as 1.5")
    return float(text)


def _whole(shown: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise InvalidOption(shown, text[:64], "expected a whole number")
    return int(text)


def _switch(shown: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidOption(shown, text[:64], "expected true or false")
    return text == "true"


_READ: dict[OptionKind, Callable[[str, str], Any]] = {
    OptionKind.KEY: _key,
    OptionKind.MESSAGE_ID: _message_id,
    OptionKind.SECONDS: _seconds,
    OptionKind.PRIORITY: _whole,
    OptionKind.OFFSET: _whole,
    OptionKind.COUNT: _whole,
    OptionKind.SIZE: _whole,
    OptionKind.SWITCH: _switch,
    OptionKind.POLICY: lambda _, text: Policy.of(text[:64]),
}

_SCHEMAS: dict[OptionKind, Json] = {
    OptionKind.KEY: {"type": "string", "pattern": "^[!-~]*$"},
    OptionKind.MESSAGE_ID: {"type": "string", "pattern": "^[!-~]{1,256}$"},
    OptionKind.SECONDS: {"type": "string", "pattern": "^[0-9]{1,10}(\\.[0-9]{1,9})?$"},
    OptionKind.PRIORITY: {"type": "integer", "minimum": 0, "maximum": 9},
    OptionKind.OFFSET: _WHOLE_SCHEMA,
    OptionKind.COUNT: _WHOLE_SCHEMA | {"minimum": 1},
    OptionKind.SIZE: _WHOLE_SCHEMA | {"minimum": 1},
    OptionKind.SWITCH: {"type": "boolean"},
    OptionKind.POLICY: {"type": "string", "pattern": "^(drop_oldest|drop_newest|disconnect(:[1-9][0-9]{0,8})?)$"},
}
