"""The page of docs/howto/publish-over-http.md works as it is shown, and the reference knows every code and limit."""

import asyncio
import re
import shutil
from typing import Any

import pytest

from runnel.server.http import listener, websocket
from tests.project.project import ROOT
from tests.server.http.browser import serving
from tests.server.native_client import until

HOWTO = (ROOT / "docs" / "howto" / "publish-over-http.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "websocket.md").read_text()
NODES = [found] if (found := shutil.which("node")) else []


def script() -> str:
    """What the page shows."""
    (found,) = [one for one in re.findall(r"^```js\n(.*?)^```", HOWTO, re.MULTILINE | re.DOTALL) if "WebSocket" in one]
    return str(found)


@pytest.mark.parametrize("node", NODES)
async def test_the_page_draws_acks_and_takes_its_news(node: str) -> None:
    async with serving() as server:
        source = script().replace("127.0.0.1:7780", f"127.0.0.1:{server.listeners[0].port}")
        page = await asyncio.create_subprocess_exec(
            node,
            "--experimental-websocket",
            "--no-warnings",
            "-e",
            source,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        broker = server.broker
        await until(lambda: len(broker.statistics().subscriptions) + len(broker.statistics().groups) == 2)
        await broker.topic("news").publish_many([b"%d" % number for number in range(250)])
        await until(lambda: [group.acked for group in broker.statistics().groups] == [1])
        assert page.stdout is not None
        said = b""
        while b"news: 249\n" not in said:
            said += await page.stdout.read(4096)
        await server.close()
        rest, complained = await page.communicate()
        lines = (said + rest).decode().splitlines()
        assert lines.count("drawing a tree") == 1
        assert [line for line in lines if line.startswith("news")] == [f"news: {number}" for number in range(250)]
        assert (lines[-1], complained) == ("closed 1001", b"")


def test_the_reference_knows_every_close_code() -> None:
    codes: dict[str, Any] = vars(websocket) | vars(listener)
    known = {value for value in codes.values() if isinstance(value, int) and 1000 <= value < 1100}
    assert {code for code in known if not re.search(rf"^\| {code} \|", REFERENCE, re.MULTILINE)} == set()
    assert len(known) >= 5
