"""A hook of mkdocs: where a picture was not made, because there is no browser here, the page does without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PICTURE = re.compile(r"!\[[^\]]*\]\((?:\.\./)*(pictures/[\w-]+\.png)(?:#[\w-]+)?\)(?:\{[^}]*\})?[ \t]*\n?")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """The page, without pictures that are not there."""
    docs = Path(config["docs_dir"])
    return PICTURE.sub(lambda found: found[0] if (docs / found[1]).exists() else "", markdown)
