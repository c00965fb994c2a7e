"""Every entry of the threat model names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "threat-model.md"


def test_every_threat_names_a_test_that_exists() -> None:
    rows = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) > 20
    for row in rows:
        tests = re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1])
        assert tests, f"no test: {row}"
        file = ""
        for one in tests:
            path, _, name = one.partition("::")
            file = path if path != "…" else file
            found = ROOT / (file if file.startswith("tests/") else f"tests/security/{file}")
            assert found.exists(), one
            assert not name or f"def {name}(" in found.read_text(encoding="utf-8"), one
