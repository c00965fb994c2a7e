"""Twelve jobs, three viewers each, and a server that is killed (-9) in the middle: no line is lost, none is repeated.

To see the pages, start the application itself: `python examples/joblogs/app.py`. This starts it as well, watches jobs
as pages would, kills it while they run, and compares what was seen. What polling would cost: `polling.py`.

Prints::

    36 viewers watch 12 jobs
    killed the server (-9), and started it again
    12 jobs succeeded or failed, ... lines in all
    every viewer saw every line of its job, once and in order
"""

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.joblogs.viewer import follow
else:
    from viewer import follow  # beside this file

JOBS, VIEWERS, LINES = 12, 3, 24
IDS = [f"demo{n}" for n in range(JOBS)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class App:
    """The application, in a process of its own."""

    def __init__(self) -> None:
        self.port, self.native_port = free_port(), free_port()

    async def start(self) -> None:
        script = str(Path(__file__).with_name("app.py"))
        where = ("--folder", "joblogs-data", "--port", str(self.port), "--native-port", str(self.native_port))
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, script, *where, "--until-eof"),  # it ends with us, however we end
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

    async def end(self, how: signal.Signals) -> None:
        os.kill(self.process.pid, how)
        await self.process.wait()

    def queue(self, ids: list[str]) -> None:
        jobs = [{"id": id, "title": "Demo", "lines": LINES, "rate": 8} for id in ids]
        body = "\n".join(map(json.dumps, jobs)).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/bus/topics/jobs.queue", body, {"content-type": "application/x-ndjson"}
        )
        urllib.request.urlopen(request).close()


async def view(port: int, id: str, seen: list[int]) -> str:
    """Watch a job to its end; the state in which it ends."""
    async for record in follow(port, f"/bus/events?topic=joblogs.{id}&start=earliest"):
        seen.append(record["offset"])
        line = json.loads(record["value"])
        if "state" in line:
            return str(line["state"])
    raise AssertionError("it never stops following")


async def main() -> None:
    app, seen = App(), {(id, n): list[int]() for id in IDS for n in range(VIEWERS)}
    await app.start()
    async with asyncio.TaskGroup() as viewers:
        views = [viewers.create_task(view(app.port, id, seen[id, n])) for id, n in seen]
        print(f"{len(views)} viewers watch {JOBS} jobs")
        await asyncio.to_thread(app.queue, IDS)
        while sum(map(len, seen.values())) < JOBS * VIEWERS * LINES // 3:  # noqa: ASYNC110  # seen by many
            await asyncio.sleep(0.02)
        await app.end(signal.SIGKILL)
        await app.start()
        print("killed the server (-9), and started it again")
    await app.end(signal.SIGTERM)
    assert {view.result() for view in views} <= {"succeeded", "failed"}
    lines = {id: list(range(LINES)) for id in IDS}
    print(f"{JOBS} jobs succeeded or failed, {JOBS * LINES} lines in all")
    wrong = [viewer for viewer, offsets in seen.items() if offsets != lines[viewer[0]]]
    print("every viewer saw every line of its job, once and in order" if not wrong else f"not so: {wrong}")


if __name__ == "__main__":
    asyncio.run(main())
