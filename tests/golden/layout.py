"""JSON as the golden files have it: what fits is on one line, so that a record is a line and a difference is short."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 118


def laid_out(value: Any, indent: str = "", before: int = 0) -> str:
    """A value as JSON. `before`: the characters in front of it, on its line."""
    flat = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or before + len(flat) <= WIDTH:
        return flat
    inner = indent + " "
    if isinstance(value, list):
        lines = [laid_out(one, inner, len(inner)) for one in value]
    else:
        heads = [json.dumps(name, ensure_ascii=False) + ": " for name in value]
        lines = [
            head + laid_out(one, inner, len(inner) + len(head)) for head, one in zip(heads, value.values(), strict=True)
        ]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"
