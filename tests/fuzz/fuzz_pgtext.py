"""Arrays and composite values of PostgreSQL under fire: text becomes JSON, or it is refused."""

import json

from runnel.postgres.types import TypeCatalog

CATALOG = TypeCatalog()
CATALOG.add(
    [
        (90_000, "pair", "c", 0, ",", ["a", "b"], [25, 1009]),
        (90_001, "_pair", "a", 90_000, ",", [], []),
        (90_002, "box", "b", 0, ";", [], []),
        (90_003, "_box", "a", 90_002, ",", [], []),
    ]
)
READERS = [CATALOG.to_json(oid) for oid in (25, 1009, 90_000, 90_001, 90_003)]  # all made of text

SEEDS = (
    b"\x00text",
    b'\x01{a,"b \\"c\\"",NULL}',
    b"\x01[0:1][1:1]={{a},{b}}",
    b'\x02("a ""b""","{x,y}")',
    b'\x03{"(a,\\"{b,\\\\\\"c d\\\\\\"}\\")",NULL}',
    b"\x04{(1,1),(0,0);(2,2),(1,1)}",
)


def one_input(data: bytes) -> None:
    """The first byte chooses the type; the rest is the text."""
    if not data:
        return
    try:
        found = READERS[data[0] % len(READERS)](data[1:])
    except ValueError:
        return
    json.loads(found)
