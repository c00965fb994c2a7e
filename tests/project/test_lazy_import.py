"""`import runnel` costs next to nothing: a Spark executor loads only what it uses."""

import subprocess
import sys

import pytest

HEAVY = {"asyncio", "msgspec", "runnel.broker", "runnel.cli", "runnel.observe", "runnel.testing"}
INSIDE = {"runnel.broker", "runnel.journal", "runnel.server"}  # what only the process of a broker needs


def loaded_by(statement: str, of: set[str] = HEAVY) -> set[str]:
    """The modules, `of` these, that a fresh interpreter has loaded after the statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return of & set(done.stdout.split())


def test_importing_runnel_loads_nothing_heavy() -> None:
    assert loaded_by("import runnel") == set()


@pytest.mark.parametrize("name", ["asyncio", "msgspec"])
def test_the_probe_sees_what_is_loaded(name: str) -> None:
    assert name in loaded_by(f"import {name}")


def test_a_name_is_loaded_when_it_is_first_used() -> None:
    assert loaded_by("import runnel; runnel.Topic") == {"asyncio", "msgspec"}
    assert "runnel.broker" in loaded_by("import runnel; runnel.open()")


def test_a_name_loads_its_own_room_only() -> None:
    assert loaded_by("import runnel; runnel.open, runnel.Record, runnel.Statistics", INSIDE) == set()
    assert loaded_by("import runnel; runnel.Broker", INSIDE) == set()


def test_importing_the_blocking_client_loads_neither_broker_nor_journal_nor_server() -> None:
    assert loaded_by("import runnel.blocking", INSIDE) == set()


@pytest.mark.parametrize("url", ["runnel://localhost:7788", "runnel+unix:///tmp/nobody.sock", "nats://a,b,c"])
@pytest.mark.parametrize("room", ["runnel.opening", "runnel.blocking"])
def test_opening_a_server_loads_neither_broker_nor_journal_nor_server(room: str, url: str) -> None:
    assert loaded_by(f"import {room}; {room}.open({url!r})", INSIDE) == set()


def test_opening_memory_loads_no_client() -> None:
    assert loaded_by("import runnel; runnel.open()", {"runnel.broker", "runnel.client"}) == {"runnel.broker"}
