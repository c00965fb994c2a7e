"""`runnel mirror` and `runnel bridge` log in at both sides, each with a token of its own, or with RUNNEL_TOKEN."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded


@asynccontextmanager
async def two_servers(folder: Path) -> AsyncIterator[tuple[Guarded, Guarded]]:
    """A source with a record of `t`, and a destination; each knows a token of its own, in the file NAME.token."""
    made = {}
    for name in ("from", "to"):
        (folder / name).mkdir()
        made[name] = Tokens()
        (folder / f"{name}.token").write_text(made[name].add("copier", roles=["admin"]))
    async with guarded(folder / "from", made["from"]) as source, guarded(folder / "to", made["to"]) as target:
        await source.server.broker.publish("t", b"x")
        yield source, target


async def started(*arguments: str, token: str | None = None) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNNEL_")}
    if token is not None:
        environment["RUNNEL_TOKEN"] = token
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runnel", *arguments, env=environment, stderr=asyncio.subprocess.PIPE
    )


async def test_mirror_and_bridge_log_in_with_the_token_of_each_side(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), two_servers(tmp_path) as (source, target):
        tokens = ("--token-file", str(tmp_path / "from.token"), "--to-token-file", str(tmp_path / "to.token"))
        mirror = await started("mirror", source.url(), target.url(), "t", "--once", *tokens)
        _, said = await mirror.communicate()
        assert (mirror.returncode, b"1 record copied" in said) == (0, True), said
        bridge = await started(
            "bridge", "t", "--server", source.url(), "--to", target.url(), "--into", "eu.{topic}", *tokens
        )
        try:
            async with target.server.broker.subscribe("eu.t", start="earliest") as records:
                assert (await anext(records)).value == b"x"
        finally:
            bridge.terminate()
            await bridge.communicate()


async def test_the_token_of_the_environment_is_for_both_sides_and_files_go_before_it(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), two_servers(tmp_path) as (source, target):
        token, urls = (tmp_path / "from.token").read_text(), (source.url(), target.url())
        refused = await started("mirror", *urls, "t", "--once", token=token)
        _, said = await refused.communicate()
        assert (refused.returncode, b"(not_authenticated)" in said) == (1, True), said
        mirror = await started(
            "mirror", *urls, "t", "--once", "--to-token-file", str(tmp_path / "to.token"), token=token
        )
        _, said = await mirror.communicate()
        assert (mirror.returncode, b"1 record copied" in said) == (0, True), said


@pytest.mark.parametrize(
    "arguments",
    [
        ("mirror", "data", "there", "t", "--token-file", "f"),
        ("mirror", "data", "nats://a", "t", "--to-token-file", "f"),
        ("bridge", "t", "--data", "data", "--to", "there", "--to-token-file", "f"),
    ],
)
def test_a_token_for_what_is_no_server_is_refused(runnel: Command, arguments: tuple[str, ...]) -> None:
    done = runnel(*arguments)
    assert done.status == 2
    assert "a token is for a server" in done.err
