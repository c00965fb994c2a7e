"""Which columns the sink takes, and as what: checked once on the driver, before a row moves.

Below: core.errors. Above: the writers, staging.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from runnel.core.errors import InvalidOption

TYPES: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("map<string,string>",),
}
"""The columns, and the types that Spark may give them."""


def check_columns(given: Mapping[str, str], topic: str | None) -> None:
    """Raise unless rows of these columns (name to Spark's type) can be written; `topic`: the option of that name."""
    for name, kind in given.items():
        if name not in TYPES:
            raise InvalidOption("columns", sorted(given), f"{_stranger(name)}; select those that are to be written")
        if kind not in TYPES[name]:
            why = f"the column {name!r} is {kind}, and has to be {' or '.join(TYPES[name])}"
            raise InvalidOption("columns", sorted(given), f"{why}; cast it, or turn it into text with to_json")
    if "value" not in given:
        why = "there is no column 'value'; to write whole rows, make one: select(to_json(struct('*')).alias('value'))"
        raise InvalidOption("columns", sorted(given), why)
    if topic is None and "topic" not in given:
        raise InvalidOption("topic", None, "name the topic with the option topic, or give each row a column 'topic'")


def _stranger(name: str) -> str:
    near = get_close_matches(name.lower(), TYPES, 1)
    return f"the sink has no column {name!r}; " + (
        f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(TYPES)}"
    )
