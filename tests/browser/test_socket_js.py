"""The npm package in `clients/js`, and `runnel-socket.js` in Chromium: one WebSocket for everything."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page

from tests.browser.complaints import Complaints
from tests.browser.served import ROOT, Served
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded
from tools import js_client

SCRIPT = Path(__file__).parent / "socket_client.mjs"
NODE = shutil.which("node")


@pytest.fixture(scope="module", autouse=True)
def _package() -> None:
    """The package with its modules in place, as `npm pack` makes it."""
    js_client.main()


@asynccontextmanager
async def node(scenario: str, url: str, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A scenario of the script, which has to end well."""
    assert NODE is not None, "the tests of the JavaScript client need Node 20 in the PATH; BROWSER=0 leaves them out"
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(NODE, str(SCRIPT), scenario, url, *more, stdin=pipe, stdout=pipe)
    try:
        async with asyncio.timeout(PATIENCE):
            yield program
            assert program.stdout is not None
            told = (await program.stdout.read()).decode()
            assert await program.wait() == 0
            assert told.endswith("ok\n")
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


async def test_a_program_does_everything_over_one_socket(tmp_path: Path) -> None:
    served = Served(tmp_path)
    await served.start()
    try:
        async with node("everything", served.url):
            pass
    finally:
        await served.stop()


async def test_nothing_is_lost_or_doubled_while_the_server_is_killed(tmp_path: Path) -> None:
    served = Served(tmp_path)
    await served.start()
    try:
        async with node("killed", served.url) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            for _ in range(2):
                for _ in range(2):
                    assert await program.stdout.readline()
                await served.kill()
                await served.start()
            assert await program.stdout.readline()
            program.stdin.write(b"stop\n")
    finally:
        await served.stop()


async def test_a_token_is_renewed_before_it_is_over(tmp_path: Path) -> None:
    tokens, expiry = Tokens(), time.time() + 2
    right = ["publish:>", "create:>"]
    first, second = tokens.add("short", right, expires=expiry), tokens.add("short", right)
    async with guarded(tmp_path, tokens) as server:
        async with node("token", server.url("http"), first, second, str(expiry)):
            pass


async def test_a_page_publishes_follows_and_asks(page: Page, one_server: Served, complaints: Complaints) -> None:
    complaints.expect("favicon.ico")
    await page.goto(one_server.url + "/runnel.js")
    script = """async () => {
      const { open } = await import("/runnel-socket.js");
      const client = open();
      const records = client.subscribe("socket.page", { start: "earliest" });
      await client.publish("socket.page", { from: "a page" });
      const record = (await records.next()).value;
      const questions = client.group("socket.ask", "g");
      while (!(await client.members("socket.ask")).length);
      const answer = client.request("socket.ask", "?");
      const { value: question } = await questions.next();
      await client.reply(question, "!");
      await question.ack();
      const found = [record.value, (await answer).value, client.state];
      client.close();
      return found;
    }"""
    async with asyncio.timeout(PATIENCE):
        assert await page.evaluate(script) == [{"from": "a page"}, "!", "open"]


async def test_the_package_holds_what_servers_serve() -> None:
    package = ROOT / "clients" / "js"
    about = json.loads((package / "package.json").read_text())
    assert {path.name for path in package.iterdir() if path.suffix in (".js", ".ts")} == set(about["files"])
    assert {name for name in about["files"] if name.startswith("runnel")} == set(js_client.COPIED)
