"""What was measured, kept in `benchmarks/results/`: a file for each question, with the commit, date and command.

`python -m benchmarks … --save` writes them; `published` makes docs/benchmarks.md of them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def saved(told: Mapping[str, Any], conditions: Mapping[str, str], command: str, folder: Path = FOLDER) -> Path:
    """Write the answer to a question; the file."""
    document = {
        "command": command,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "conditions": dict(conditions),
        **_short(told),
    }
    folder.mkdir(exist_ok=True)
    file = folder / f"{told['name']}.json"
    # A line for each contender and each cell: a diff shows what changed.
    rows = {name: value for name, value in document.items() if isinstance(value, list)}
    head = json.dumps(
        {name: value for name, value in document.items() if name not in rows}, ensure_ascii=False, indent=1
    )
    body = ",\n ".join(f"{json.dumps(name)}: [\n  {_lines(value)}\n ]" for name, value in rows.items() if value)
    file.write_text(f"{head[:-2]},\n {body}\n}}\n", encoding="utf-8")
    return file


def _lines(rows: list[Any]) -> str:
    return ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)


def _short(told: Any) -> Any:
    """The same, with as many digits as a measurement has."""
    if isinstance(told, float):
        return float(f"{told:.4g}")
    if isinstance(told, Mapping):
        return {name: _short(value) for name, value in told.items()}
    return [_short(value) for value in told] if isinstance(told, list) else told


def read(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """What was saved of a question; None: nothing."""
    file = folder / f"{name}.json"
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def commit() -> str:
    """The commit that is measured; "+" where files differ from it."""
    asked = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    found = subprocess.run(asked, cwd=FOLDER.parent, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
