"""The pages, and the blocks that a test runs for them: `<!-- run-by: tests/….py -->`."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import Block as PythonBlock
from tests.docs.blocks import extract
from tests.docs.shell import Block, blocks_of
from tests.project.project import ROOT


def marked_for(test: str) -> dict[str, list[Block | PythonBlock]]:
    """The blocks that a page leaves to a test, by page, in order."""
    path = str(Path(test).relative_to(ROOT))
    found: dict[str, list[Block | PythonBlock]] = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        blocks: list[Block | PythonBlock] = [*blocks_of(text), *extract(text)]
        if chosen := [one for one in blocks if one.run_by == path]:
            found[page.stem] = sorted(chosen, key=lambda one: one.line)
    return found
