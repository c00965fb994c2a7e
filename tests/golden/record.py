"""Writes the golden files: `python -m tests.golden.record --into DIR [folders|exchanges]`.

Without a word it writes all of them. `--into tests/golden` replaces the files that the tests compare with: that is
right only for a new file. An intended change goes into `changed/`, see README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.golden.exchanges import play, serving
from tests.golden.layout import laid_out
from tests.golden.reading import Asked, read_folder
from tests.golden.scenarios import EXCHANGES, SERVERS
from tests.golden.writing import JOURNALS, WRITERS

HERE = Path(__file__).parent


def record_folders(into: Path) -> None:
    """Write each folder, and what is read from it. Folders of `tests/journal/golden_journals.py` are only read."""
    with tempfile.TemporaryDirectory() as made:
        for name, write in WRITERS.items():
            data = Path(made) / name / "data"
            data.parent.mkdir()
            asked = asyncio.run(write(data))
            shutil.rmtree(into / name, ignore_errors=True)
            shutil.copytree(data, into / name / "data")
            _expect(into / name, asked)
    for name, asked in JOURNALS.items():
        if into != HERE / "folders":
            shutil.copytree(HERE / "folders" / name / "data", into / name / "data", dirs_exist_ok=True)
        _expect(into / name, asked)


def _expect(folder: Path, asked: Asked) -> None:
    with tempfile.TemporaryDirectory() as made:
        copy = shutil.copytree(folder / "data", Path(made) / "data")
        facts = read_folder(copy, asked)
    _write(folder / "expected.json", facts)


def record_exchanges(into: Path) -> None:
    """Play each exchange against a server of this code."""
    into.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers: dict[str, dict[str, int]] = {}
        for name, exchange in EXCHANGES.items():
            if exchange.server not in servers:
                cwd = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                servers[exchange.server] = stack.enter_context(serving(cwd, *SERVERS[exchange.server]))
            head = {
                "about": exchange.about,
                "protocol": exchange.protocol,
                "server": exchange.server,
                "options": " ".join(SERVERS[exchange.server]),
                "place": [one for one in EXCHANGES if EXCHANGES[one].server == exchange.server].index(name),
            }
            steps = play(exchange.protocol, exchange.steps, servers[exchange.server])
            if any("unexpected" in step or "failed" in step for step in steps):
                sys.stderr.write(f"{name}: its steps take other answers than came\n{laid_out(steps[-2:])}\n")
            _write(into / f"{name}.json", head | {"steps": steps})


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(laid_out(document) + "\n")


RECORDERS = {"folders": record_folders, "exchanges": record_exchanges}


def main() -> None:
    """Record what is asked for."""
    parser = argparse.ArgumentParser(description="record golden files of the present behavior")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="where to write them")
    parser.add_argument("what", nargs="*", metavar="folders|exchanges", help="default: all of them")
    chosen = parser.parse_args()
    if unknown := [what for what in chosen.what if what not in RECORDERS]:
        parser.error(f"there is no {unknown[0]!r}: expected {', '.join(RECORDERS)}")
    logging.getLogger("runnel").addHandler(logging.NullHandler())
    for what in chosen.what or RECORDERS:
        RECORDERS[what]((chosen.into / what).resolve())


if __name__ == "__main__":
    main()
