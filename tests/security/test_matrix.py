"""Every operation × every listener × every kind of token gets what the table in the docs says."""

import asyncio
from pathlib import Path
from typing import Any, get_args

import pytest
from starlette.routing import Match, Route

import runnel
from runnel.server.http.application import build
from runnel.server.http.authentication import _is_open
from runnel.server.http.console import actions
from runnel.server.native.calls import CALLS, Caller
from runnel.wire.json_commands import FORMS
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded
from tests.security.matrix import (
    ACTIONS,
    COMMANDS,
    KINDS,
    LETTERS,
    OK,
    OPERATIONS,
    PAGE,
    PATHS,
    RIGHTS,
    ROLES,
    TOPIC,
    Operation,
    written,
)


def make_tokens() -> Tokens:
    tokens = Tokens()
    for right, allow in RIGHTS.items():
        tokens.add(right, allow)
    for name, role in ROLES.items():
        tokens.add(name, roles=[role])
    everything = [f"{action}:other.>" for action in ("publish", "subscribe", "group", "create", "admin")]
    tokens.add("other", everything)
    tokens.add("doomed")
    tokens.add("expired", RIGHTS["publish"], expires=1.0)
    tokens.add("alice", ["publish:>", "create:>", "subscribe:>", "group:>"])
    return tokens


def credential(server: Guarded, kind: str, operation: Operation) -> str:
    if kind == "none":
        return ""
    if kind == "wrong":
        return f"rnl_{'0' * 16}_{'0' * 64}"
    return server.tokens[operation.right if kind == "valid" else kind]


async def prepare(server: Guarded) -> None:
    """Topics, a group, dead letters, and names that belong to alice."""
    async with server.client(server.tokens["alice"]) as alice:
        await alice.publish(TOPIC, "0")
        await alice.publish(LETTERS, "0")
        async with alice.subscribe(TOPIC, name="alices"):
            pass
        for group in ("work", "doomed"):
            async with alice.subscribe(TOPIC, group=group):
                pass
        async with alice.transaction() as tx:
            tx.mark("alices", 1)


@pytest.mark.parametrize("listener", sorted({one.listener for one in OPERATIONS}))
async def test_every_operation_is_refused_or_allowed_as_the_table_says(
    listener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[str] = []
    called = record_calls(monkeypatch)
    # Calls about stages and standbys need a journal.
    broker = runnel.open(tmp_path / "data", fsync="os", telemetry=None) if listener == "native" else runnel.open()
    async with asyncio.timeout(PATIENCE), guarded(tmp_path, make_tokens(), broker=broker) as server:
        await prepare(server)
        for operation in (one for one in OPERATIONS if one.listener == listener):
            if "delete" in operation.name:
                async with server.client(server.tokens["alice"]) as alice:
                    await alice.publish("orders.doomed", "x")
            for kind in KINDS:
                expected = operation.other if kind.name == "other" else kind.outcome
                found = await operation.attempt(server, credential(server, kind.name, operation))
                if found != expected:
                    wrong.append(f"{operation.name} with {kind.name}: {found}, not {expected}")
    assert not wrong, "\n".join(wrong)
    if listener == "native":
        assert called == set(CALLS)


def record_calls(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The calls of the native protocol that are made from now on."""
    called: set[str] = set()
    for name, function in list(CALLS.items()):

        def recorded(caller: Caller, args: dict[str, Any], name: str = name, function: Any = function) -> Any:
            called.add(name)
            return function(caller, args)

        monkeypatch.setitem(CALLS, name, recorded)
    return called


async def test_every_command_and_every_route_is_tried(tmp_path: Path) -> None:
    assert {*FORMS, "LOOK"} - {"AUTH", "HELP", "QUIT"} == COMMANDS  # these are answered before a login
    assert {one.__struct_config__.tag for one in get_args(actions._ACTIONS)} == ACTIONS
    async with guarded(tmp_path, make_tokens()) as server:
        assert server.server.serving is not None
        routes = [one for one in build(server.server.serving, mounted=False).routes if isinstance(one, Route)]
    tried = [{"type": "http", "method": method, "path": path} for method, path in PATHS]
    untried = {
        one.path
        for one in routes
        if not any(one.matches(scope)[0] is Match.FULL for scope in tried) and not _is_open(one.path, "GET")
    }
    assert untried == {"/ws", "/"}  # without an upgrade; leads to the login


def test_the_table_in_the_docs_is_that_of_this_test() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run `python -m tests.security.matrix`"
    assert OK in page
