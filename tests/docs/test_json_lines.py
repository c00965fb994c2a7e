"""The clients shown in docs/reference/json-lines.md work, and the page knows every command, event and limit."""

import asyncio
import re
import shutil
import sys

import pytest

from runnel.wire import json_commands, json_events
from tests.broker.durable_broker import until
from tests.patience import PATIENCE
from tests.project.project import ROOT
from tests.server.json_lines_client import json_listener

PAGE = (ROOT / "docs" / "reference" / "json-lines.md").read_text()
RUN = {"bash": ["bash", "-c"], "js": ["node", "--input-type=module", "-e"], "python": [sys.executable, "-c"]}
SAYS = {"bash": '"event":"published"', "js": "0 from Node"}
JOBS = 40


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no {language}"
    return found[1]


def test_the_page_shows_each_language_at_the_default_port() -> None:
    for language in RUN:
        assert "7789" in block(language)


@pytest.mark.parametrize("language", [name for name in SAYS if shutil.which(RUN[name][0])])
async def test_a_client_of_the_page_works(language: str) -> None:
    async with json_listener() as listener:
        source = block(language).replace("7789", str(listener.port))
        process = await asyncio.create_subprocess_exec(
            *RUN[language], source, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, complained = await process.communicate()
        assert (process.returncode, complained) == (0, b"")
        assert SAYS[language] in said.decode()


async def test_the_worker_of_the_page_does_every_job_that_waited_for_it() -> None:
    async with json_listener() as listener:
        for job in range(JOBS):
            await listener.broker.publish("jobs", f"{job}")
        source = block("python").replace("7789", str(listener.port))
        worker = await asyncio.create_subprocess_exec(*RUN["python"], source, stdout=asyncio.subprocess.PIPE)
        try:
            assert worker.stdout is not None
            async with asyncio.timeout(PATIENCE):
                done = [(await worker.stdout.readline()).decode().strip() for _ in range(JOBS)]
                assert done == [f"doing {job}" for job in range(JOBS)]
                await until(lambda: listener.broker.statistics().groups[0].lag == 0)
        finally:
            worker.kill()
            await worker.wait()


@pytest.mark.parametrize("name", json_commands.COMMANDS)
def test_every_command_and_its_fields_are_on_the_page(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)
    fields = set(json_commands.COMMANDS[name].__struct_encode_fields__) - {"command", "id"}
    if name in ("SUB", "PUB"):  # the page links to the table of options
        fields -= {*json_commands.SUBSCRIBE_OPTIONS, *json_commands.PUBLISH_OPTIONS}
        assert "(options.md#" in row
    assert {field for field in fields if f"`{field}`" not in row} == set()


def test_every_event_is_on_the_page() -> None:
    events = [kind for name, kind in vars(json_events).items() if isinstance(kind, type) and not name.startswith("_")]
    tags = {kind.__struct_config__.tag for kind in events if issubclass(kind, json_events.Event)}
    assert {tag for tag in tags - {"event"} if f"`{tag}`" not in PAGE} == set()
