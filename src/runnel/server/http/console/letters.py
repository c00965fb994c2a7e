"""`GET /console/letters`: dead letters by reason, searched, with the offsets of all that fit.

Reasons that differ in numbers and ids alone count as one: "order … was declined".

Offsets of many letters are what `POST /dead-letters/{topic}/replay` and `discard` take, so that exactly the shown
letters are settled. A request reads a bounded number of letters; `next` is where the next one continues.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from runnel.core.dead_letter import PREFIX
from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name
from runnel.core.record import Record
from runnel.server.http.authentication import serving_of
from runnel.server.http.dead_letters import letter_as_json
from runnel.server.http.record_json import encode_json
from runnel.server.http.requests import integer_parameter, parameters, parse_start, single_parameter
from runnel.wire.json_events import json_number

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker

LOOKED_AT = 10_000  # letters, for one request: as many as one replay takes
PAGE, PAGE_BYTES = 500, 4 << 20
SHOWN, MOST_SHOWN = 50, 500
MOST_REASONS = 100
MAX_NEEDLE = 1_000
_PARTICULAR = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{12,}\b"
    r"|[0-9]+(?:[.,][0-9]+)*"
)


class LettersRoute:
    """The route."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving

    async def letters(self, request: Request) -> Response:
        """`?topic=&from=&find=&reason=&group=&limit=`."""
        backend, asked = serving_of(request.scope, self._serving).backend, parameters(request.scope)
        topic = check_name(single_parameter(asked, "topic") or "")
        find, reason = single_parameter(asked, "find"), single_parameter(asked, "reason")
        if find is not None and len(find) > MAX_NEEDLE:
            raise InvalidOption("find", f"{find[:64]}…", f"it has more than {MAX_NEEDLE:,} characters")
        limit = integer_parameter(asked, "limit", SHOWN, MOST_SHOWN)
        start = parse_start("from", single_parameter(asked, "from") or "0")
        if not isinstance(start, int) or start < 0:
            raise InvalidOption("from", single_parameter(asked, "from"), "expected an offset, 0 or more")
        needle = find.lower().encode() if find else None
        reasons: Counter[str] = Counter()
        shown: list[Record[bytes]] = []
        offsets: list[int] = []
        looked_at = 0
        while True:
            page = await backend.dead_letters(topic, start, PAGE, PAGE_BYTES)
            start = page.next
            for letter in page.letters:
                looked_at += 1
                why = letter.headers.get(f"{PREFIX}reason", "")
                if not _fits(letter, needle):
                    continue
                shape = shape_of(why)
                reasons[shape] += 1
                if reason is not None and shape != reason:
                    continue
                offsets.append(letter.offset)
                if len(shown) < limit:
                    shown.append(letter)
            if start >= page.end or looked_at >= LOOKED_AT or await request.is_disconnected():
                break
            await asyncio.sleep(0)
        answer: dict[str, Any] = {
            "topic": topic,
            "epoch": json_number(page.epoch),
            "open": page.open,
            "looked_at": looked_at,
            "reasons": [{"reason": why, "count": count} for why, count in reasons.most_common(MOST_REASONS)],
            "letters": [letter_as_json(one) for one in shown],
            "offsets": [json_number(one) for one in offsets],
            "next": json_number(start) if start < page.end else None,
        }
        return Response(encode_json(answer), media_type="application/json")


def shape_of(reason: str) -> str:
    """A reason without what differs from letter to letter: numbers, and ids in hexadecimal."""
    return _PARTICULAR.sub("…", reason)


def _fits(letter: Record[bytes], needle: bytes | None) -> bool:
    if needle is None or needle in letter.value.lower() or (letter.key and needle in letter.key.lower()):
        return True
    return any(needle in text.lower().encode() for text in letter.headers.values())
