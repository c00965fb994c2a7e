"""Failed logins are answered at once: that they wait has a test of its own."""

import pytest


@pytest.fixture(autouse=True)
def quick_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pause before the answer."""
    monkeypatch.setattr("runnel.security.usage.FIRST_DELAY", 0.0)
