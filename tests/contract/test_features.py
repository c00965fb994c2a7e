"""The table of docs/reference/backends.md is true: each feature works on each backend, or is refused as noted there."""

from pathlib import Path

import pytest

from tests.contract.features import BACKENDS, FEATURES, Backend, outcome
from tools.backend_table import PAGE, shown, written

TABLE = shown(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("title", FEATURES)
async def test_each_backend_does_what_its_column_says(title: str, kind: str, tmp_path: Path) -> None:
    found = await outcome(title, Backend(kind, tmp_path / "data"))
    assert found == TABLE[title][kind], "run `python -m tools.backend_table`"


def test_the_page_has_a_row_for_each_probe_and_is_written_as_it_is_read() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert list(TABLE) == list(FEATURES)
    assert written(page, TABLE) == page
