"""The public surface changes only on purpose: it equals the snapshot in surface.txt."""

import difflib
import sys
from types import ModuleType

import pytest

from tests.project.surface import SNAPSHOT, main, render


def difference(before: str, after: str) -> str:
    """What changed, as a diff without context; empty when nothing did."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "surface.txt", "the code", "", "", 0, "")
    return "\n".join(lines)


def test_the_public_surface_is_the_one_that_was_agreed() -> None:
    changed = difference(SNAPSHOT.read_text(), render())
    assert not changed, f"the public surface changed; if that is meant, run `make surface`\n{changed}"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A small module to render, with one of each kind of name."""
    module = ModuleType("runnel_planted")
    source = """
import enum

class Topic:
    def __init__(self, name: 'str') -> None: ...
    async def publish(self, value: 'bytes', *, key: 'bytes | None' = None) -> 'int': ...
    def _hidden(self): ...
    @property
    def name(self) -> 'str': ...
    @classmethod
    def parse(cls, text: 'str') -> 'Topic': ...

def open(where: 'str | None' = None, token=object()): ...

class Full(TimeoutError):
    code = "full"

class Kind(enum.Enum):
    BLOCK = "block"

LIMIT = 5
__all__ = ["Full", "Kind", "LIMIT", "Topic", "open"]
"""
    module.__dict__["__name__"] = "runnel"  # its classes count as runnel's own
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "runnel_planted", module)
    return module


def test_the_rendering_shows_what_callers_rely_on(planted: ModuleType) -> None:
    assert render(("runnel_planted",)).splitlines() == [
        "# runnel_planted",
        "class Full(...) extends TimeoutError",
        "    code = 'full'",
        "class Kind extends Enum",
        "    BLOCK = 'block'",
        "LIMIT: int",
        "class Topic(name: str) -> None",
        "    name: str (property)",
        "    classmethod def parse(cls, text: str) -> Topic",
        "    async def publish(self, value: bytes, *, key: bytes | None = None) -> int",
        "def open(where: str | None = None, token=<object object>)",
    ]


def test_a_renamed_argument_shows_in_the_difference(planted: ModuleType) -> None:
    before = render(("runnel_planted",))
    exec("def open(place: 'str | None' = None): ...", planted.__dict__)
    assert "+def open(place: str | None = None)" in difference(before, render(("runnel_planted",)))


def test_printing_the_surface_leaves_the_snapshot_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = SNAPSHOT.read_text()
    assert main([]) == 0
    assert "# runnel.testing" in capsys.readouterr().out
    assert SNAPSHOT.read_text() == before
