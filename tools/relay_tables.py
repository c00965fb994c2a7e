"""Write the tables of docs/reference/relay.md and archive.md from the structs of configuration and statistics.

`python -m tools.relay_tables` writes the pages. A test compares them with what this would write.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from runnel.core.statistics import RelayStatistics
from runnel.postgres.archive import ArchiveStatistics
from runnel.postgres.archive_config import ArchiveConfig
from runnel.postgres.config import ChannelConfig, MessageConfig, RelayConfig, TableConfig

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
PAGE, ARCHIVE_PAGE = REFERENCE / "relay.md", REFERENCE / "archive.md"
STRUCTS: dict[str, Any] = {
    "relay": RelayConfig,
    "table": TableConfig,
    "message": MessageConfig,
    "channel": ChannelConfig,
    "statistics": RelayStatistics,
}
ARCHIVE_STRUCTS: dict[str, Any] = {"archive": ArchiveConfig, "archive_statistics": ArchiveStatistics}

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_ITEM = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*(?:\n  .*)*)", re.MULTILINE)


def written(page: str) -> str:
    """The page with its tables as the structs have them."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table((STRUCTS | ARCHIVE_STRUCTS)[found[2]])}\n{found[3]}", page)


def _table(struct: Any) -> str:
    said: dict[str, str] = {}
    for names, text in _ITEM.findall(inspect.getdoc(struct) or ""):
        said |= dict.fromkeys(re.findall(r"`(\w+)`", names), " ".join(text.split()))
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        kind = _kind(get_type_hints(struct)[field.name])
        text = said.get(field.name, "")
        rows.append(
            f"| `{field.name}` | {kind} | {_default(field)} | {text[:1].upper()}{text[1:]} |".replace(" |  |", " | |")
        )
    return "\n".join(rows)


def _kind(hint: Any) -> str:
    text = str(hint)
    if "Config" in text:
        return "tables"
    if "Literal" in text and "tuple" not in text:
        return " or ".join(f'"{one}"' for one in re.findall(r"'(\w+)'", text))
    for word, kind in (("tuple[int, int]", "place"), ("Statistics", "list"), ("tuple", "list"), ("dict", "table")):
        if word in text:
            return kind
    names = {"str": "text", "int": "number", "float": "number", "bool": "true or false"}
    return next(kind for name, kind in names.items() if name in text)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is msgspec.NODEFAULT:
        return "needed" if field.default_factory is msgspec.NODEFAULT else ""
    if field.default is None or field.default == ():
        return ""
    return f"`{msgspec.json.encode(field.default).decode()}`"


if __name__ == "__main__":
    for file in (PAGE, ARCHIVE_PAGE):
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"wrote {file}\n")
