"""`import runnel` costs next to nothing: a Spark executor loads only what it uses."""

import subprocess
import sys

import pytest

HEAVY = {"asyncio", "msgspec", "runnel.broker", "runnel.cli", "runnel.observe", "runnel.testing"}


def loaded_by(statement: str) -> set[str]:
    """The heavy modules that a fresh interpreter has loaded after the statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return HEAVY & set(done.stdout.split())


def test_importing_runnel_loads_nothing_heavy() -> None:
    assert loaded_by("import runnel") == set()


@pytest.mark.parametrize("name", ["asyncio", "msgspec"])
def test_the_probe_sees_what_is_loaded(name: str) -> None:
    assert name in loaded_by(f"import {name}")


def test_a_name_is_loaded_when_it_is_first_used() -> None:
    assert "runnel.broker" in loaded_by("import runnel; runnel.open")
