"""Write the tables of docs/reference/options.md from `PublishOptions` and `SubscribeOptions`.

`python tools/option_tables.py` writes the page. A test compares it with what this would write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from runnel.cli.options import cli_options, flag_of
from runnel.core.options import (
    PYTHON_ONLY,
    Option,
    OptionKind,
    PublishOptions,
    SharedSubscribeOptions,
    SubscribeOptions,
    options_of,
)
from runnel.server.http.options import event_options, header_of
from runnel.wire.json_commands import COMMANDS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "options.md"

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_NATIVE = {"start": "`start`", "policy": "`policy`", "on_drop": "`drops`"}  # fields of their own in a SUBSCRIBE


def written(page: str) -> str:
    """The page with its tables as the structs have them."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_TABLES[found[2]]()}\n{found[3]}", page)


def _publish() -> str:
    rows = []
    for name, option in options_of(PublishOptions).items():
        places = [_json_field("PUB", name), f"`{header_of(name)}`", _flag(PublishOptions, name)]
        rows.append([f"`{name}`", _type(option), option.default, _about(option), *places])
    head = ["option, as in Python", "value", "default", "meaning", "JSON lines", "HTTP header", "`runnel pub`"]
    return _table(head, rows)


def _subscribe(only: str | None) -> str:
    rows = []
    for name, option in options_of(SubscribeOptions).items():
        if option.only != only:
            continue
        native = f"`{name}`" if name in SharedSubscribeOptions.__struct_fields__ else _NATIVE.get(name, "")
        events = f"`{name}`" if name == "start" or name in event_options() else ""
        places = [native, _json_field("SUB", name), events, _flag(SubscribeOptions, name)]
        rows.append([f"`{name}`", _type(option), option.default, _about(option), *places])
    places = ["native", "JSON lines", "`GET /events`", "`runnel sub`"]
    return _table(["option, as in Python", "value", "default", "meaning", *places], rows)


_TABLES: dict[str, Callable[[], str]] = {
    "publish": _publish,
    "subscribe": lambda: _subscribe(None),
    "alone": lambda: _subscribe("alone"),
    "group": lambda: _subscribe("group"),
}


def _json_field(command: str, name: str) -> str:
    kind: Any = COMMANDS[command]
    fields = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return f"`{fields[name]}`" if name in fields else ""


def _flag(options: type[Any], name: str) -> str:
    if name not in cli_options(options):
        return ""
    switch = cli_options(options)[name].kind is OptionKind.SWITCH
    return f"`{flag_of(name)}`, `--no-{flag_of(name)[2:]}`" if switch else f"`{flag_of(name)}`"


def _type(option: Option) -> str:
    return option.kind.value + (" (Python only)" if option.kind in PYTHON_ONLY else "")


def _about(option: Option) -> str:
    return option.about.replace("|", "\\|")


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [[f" {cell} " if cell else " " for cell in line] for line in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return "".join(f"|{'|'.join(line)}|\n" for line in lines)


def main() -> int:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
