"""Write the table of docs/reference/backends.md: what each backend supports.

`python -m tools.backend_table` runs the probes of tests/contract/features.py against every backend, and writes their
outcomes. A test runs them too, and compares each with the page.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from tests.contract.features import BACKENDS, FEATURES, Backend, outcome

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "backends.md"

_TABLE = re.compile(r"(<!-- table: backends -->\n).*?(<!-- end -->\n)", re.DOTALL)
_ROW = re.compile(r"^\| (?!feature \|)(.+) \|$", re.MULTILINE)
_NOTE = re.compile(r"^(\d+)\. (.+)$", re.MULTILINE)

Outcomes = dict[str, dict[str, str | None]]
"""By feature and backend: None where it works, else why not."""


def written(page: str, outcomes: Outcomes) -> str:
    """The page with the table of these outcomes."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(outcomes)}\n{found[2]}", page)


def _table(outcomes: Outcomes) -> str:
    notes: dict[str, int] = {}

    def cell(why: str | None) -> str:
        return "yes" if why is None else f"no ({notes.setdefault(why, len(notes) + 1)})"

    lines = [["feature", *BACKENDS], ["---"] * (len(BACKENDS) + 1)]
    lines += [[title, *map(cell, row.values())] for title, row in outcomes.items()]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return table + "\n" + "".join(f"{number}. {why}\n" for why, number in notes.items())


def shown(page: str) -> Outcomes:
    """The outcomes that the table of a page has."""
    found = _TABLE.search(page)
    assert found is not None, "the page has a table"
    notes = dict(_NOTE.findall(found[0]))
    outcomes: Outcomes = {}
    for row in _ROW.findall(found[0]):
        title, *cells = row.split(" | ")
        if title != "---":
            reasons = [None if cell == "yes" else notes[re.sub(r"\D", "", cell)] for cell in cells]
            outcomes[title] = dict(zip(BACKENDS, reasons, strict=True))
    return outcomes


def probed() -> Outcomes:
    """What the probes find."""
    found: Outcomes = {title: {} for title in FEATURES}
    for title, row in found.items():
        for kind in BACKENDS:
            with tempfile.TemporaryDirectory() as folder:
                row[kind] = asyncio.run(outcome(title, Backend(kind, Path(folder) / "data")))
    return found


def main() -> int:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), probed()), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
