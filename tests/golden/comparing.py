"""The golden files as they are to be compared: with the intended changes of `changes.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.golden import changes, frames

HERE = Path(__file__).parent
UNREAD = "asked"  # in expected.json: what the reader is told, no result


def names(kind: str) -> list[str]:
    """The golden files of a kind, by their names: new ones too, and without those that an intended change removed."""
    found = {path.relative_to(root).as_posix() for root in (HERE, HERE / "changed") for path in _files(root / kind)}
    return sorted(name for name in found if golden(name).exists())


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "data" not in path.relative_to(folder).parts]


def golden(name: str) -> Path:
    """Where the golden file is: in `changed/`, if it is an intended change."""
    return HERE / "changed" / name if name in changes.CHANGED else HERE / name


def read(name: str) -> Any:
    """A golden JSON file, reworded."""
    return reworded(json.loads(golden(name).read_text()))


def reworded(value: Any) -> Any:
    """A value of a golden file, with the wordings that are intended now."""
    if isinstance(value, str):
        for old, new in changes.REWORDED.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [reworded(one) for one in value]
    if isinstance(value, dict):
        found = {name: reworded(one) for name, one in value.items()}
        if {"frame", "says", "bytes"} <= value.keys() and found["says"] != value["says"]:
            found["bytes"] = _frame_of(value, found["says"])
        return found
    return value


def _frame_of(recorded: dict[str, Any], says: Any) -> str:
    """The bytes of a frame whose payload says something else: of kinds that are one value in msgpack."""
    (frame,), _ = frames.split(bytes.fromhex(recorded["bytes"]))
    if frames.pack(recorded["says"]) != frame.payload:
        raise ValueError(f"{recorded['frame']} cannot be reworded; list its file in CHANGED")
    return frame._replace(payload=frames.pack(says)).encode().hex()
