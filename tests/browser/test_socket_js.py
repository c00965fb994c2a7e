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
import pytest_asyncio
from playwright.async_api import Page, Route

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
    tokens, expiry = Tokens(), time.time() + 5  # Node has to be up before
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


PROJECT = """
import { open } from "runnel-mq";
import { publish } from "runnel-mq/events";
const [url] = process.argv.slice(2);
const client = open(url);
await publish("fresh", { from: "events" }, { url });
const { value: record } = await client.subscribe("fresh", { start: "earliest" }).next();
console.log(JSON.stringify(record.value));
client.close();
"""


async def npm(*words: str, cwd: Path) -> None:
    """Run npm, without the registry."""
    npm = shutil.which("npm")
    assert npm is not None, "npm comes with Node"
    program = await asyncio.create_subprocess_exec(
        *(npm, *words, "--offline", "--no-audit", "--no-fund", "--no-update-notifier"),
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await program.communicate()
    assert program.returncode == 0, told.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `npm pack` makes it, installed in an empty project; the folder of the project."""
    made, project = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("project")
    await npm("pack", "--pack-destination", str(made), cwd=ROOT / "clients" / "js")
    (archive,) = made.glob("*.tgz")
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    await npm("install", str(archive), cwd=project)
    return project


async def test_an_empty_project_installs_the_package_and_uses_it(installed: Path, one_server: Served) -> None:
    (installed / "main.mjs").write_text(PROJECT)
    assert NODE is not None
    async with asyncio.timeout(PATIENCE):
        program = await asyncio.create_subprocess_exec(
            NODE, "main.mjs", one_server.url, cwd=installed, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await program.communicate()
    assert (program.returncode, json.loads(told)) == (0, {"from": "events"})


async def test_a_page_uses_the_installed_package(
    page: Page, installed: Path, one_server: Served, complaints: Complaints
) -> None:
    complaints.expect("favicon.ico")
    package = installed / "node_modules" / "runnel-mq"

    async def served(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        await route.fulfill(path=package / name, content_type="text/javascript")

    await page.route("**/node_modules/runnel-mq/*", served)
    await page.goto(one_server.url + "/runnel.js")
    script = """async (url) => {
      const { open } = await import("/node_modules/runnel-mq/index.js");
      const client = open(url);
      await client.publish("installed", { from: "a page" });
      const { value: record } = await client.subscribe("installed", { start: "earliest" }).next();
      client.close();
      return record.value;
    }"""
    async with asyncio.timeout(PATIENCE):
        assert await page.evaluate(script, one_server.url) == {"from": "a page"}


@pytest.mark.nightly
async def test_the_types_hold_in_strict_projects(installed: Path) -> None:
    """With TypeScript from the registry, of a page and of a program without the types of browsers."""
    types = Path(__file__).parent / "package_types.ts"
    (installed / "package_types.ts").write_bytes(types.read_bytes())
    made = await asyncio.create_subprocess_exec(
        *("npm", "install", "--no-save", "--no-audit", "--no-fund", "typescript", "@types/node@20"), cwd=installed
    )
    assert await made.wait() == 0
    strict = ("--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess", "--noEmit", "--types", "node")
    for module, resolution in (("nodenext", "nodenext"), ("esnext", "bundler")):
        for libraries in ("es2022", "es2022,dom"):
            program = await asyncio.create_subprocess_exec(
                *("npx", "tsc", *strict, "--target", "es2022", "--lib", libraries),
                *("--module", module, "--moduleResolution", resolution, "package_types.ts"),
                cwd=installed,
            )
            assert await program.wait() == 0


async def test_the_package_holds_what_servers_serve() -> None:
    package = ROOT / "clients" / "js"
    about = json.loads((package / "package.json").read_text())
    assert {path.name for path in package.iterdir() if path.suffix in (".js", ".ts")} == set(about["files"])
    assert {name for name in about["files"] if name.startswith("runnel")} == set(js_client.COPIED)
