"""Every operation × every listener × every kind of token gets what the table in the docs says."""

import asyncio
from pathlib import Path

import pytest

import runnel
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded
from tests.security.matrix import KINDS, LETTERS, OK, OPERATIONS, PAGE, RIGHTS, ROLES, TOPIC, Operation, written


def make_tokens() -> Tokens:
    tokens = Tokens()
    for right, allow in RIGHTS.items():
        tokens.add(right, allow)
    for name, role in ROLES.items():
        tokens.add(name, roles=[role])
    everything = [f"{action}:other.>" for action in ("publish", "subscribe", "group", "create", "admin")]
    tokens.add("other", everything)
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
        async with alice.subscribe(TOPIC, group="work"):
            pass
        async with alice.transaction() as tx:
            tx.mark("alices", 1)


@pytest.mark.parametrize("listener", sorted({one.listener for one in OPERATIONS}))
async def test_every_operation_is_refused_or_allowed_as_the_table_says(listener: str, tmp_path: Path) -> None:
    wrong: list[str] = []
    async with asyncio.timeout(PATIENCE), guarded(tmp_path, make_tokens(), broker=runnel.open()) as server:
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


def test_the_table_in_the_docs_is_that_of_this_test() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run `python -m tests.security.matrix`"
    assert OK in page
