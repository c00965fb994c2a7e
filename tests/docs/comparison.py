"""Runs the programs of docs/comparison.md by one tool: `python -m tests.docs.comparison TOOL FOLDER`.

Each job has to do what the page says; what it printed is compared, whatever the tool. The folder has a program for
each job, with the address of a NATS server in it.
"""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

LIMIT = 120.0  # seconds for one step

Publish = Callable[[str, str], Awaitable[Any]]


async def printed(out: io.StringIO, lines: set[str]) -> list[str]:
    """What was printed, once all of these lines were."""
    async with asyncio.timeout(LIMIT):
        while not lines <= {*out.getvalue().splitlines()}:  # noqa: ASYNC110 - print() tells nobody
            await asyncio.sleep(0.01)
    return [line for line in out.getvalue().splitlines() if "INFO" not in line]  # FastStream logs there, too


@asynccontextmanager
async def at_work(tool: str, job: str) -> AsyncIterator[Publish]:
    """The program of a job, with its functions subscribed; gives a function that publishes."""
    if tool == "nats":
        async with nats_at_work(job) as publish:
            yield publish
    elif tool == "faststream":
        broker = import_module(job).broker
        await broker.start()
        yield lambda subject, value: broker.publish(value, subject)
        await broker.stop()
    else:
        broker = import_module(job).broker
        async with broker:
            running = asyncio.create_task(broker.run(signals=False))
            await broker.ready()
            yield broker.publish
            broker.stop()
            await running


@asynccontextmanager
async def nats_at_work(job: str) -> AsyncIterator[Publish]:
    """A program of nats.py, whose `asyncio.run(main())` becomes a task here."""
    import nats

    begun: list[asyncio.Task[None]] = []
    real: Any = asyncio.run
    vars(asyncio)["run"] = lambda main: begun.append(asyncio.create_task(main))
    try:
        import_module(job)
    finally:
        vars(asyncio)["run"] = real
    client = await nats.connect(os.environ["NATS_URL"])
    async with asyncio.timeout(LIMIT):
        if job == "worker":
            while not (await client.jetstream().streams_info()):  # noqa: ASYNC110 - nothing tells of a new stream
                await asyncio.sleep(0.01)
        else:  # a subscription of core NATS gets nothing from before
            out = sys.stdout
            assert isinstance(out, io.StringIO), "it is redirected"
            while "pack probe" not in out.getvalue():
                await client.publish("orders", b"probe")
                await asyncio.sleep(0.01)
    yield lambda subject, value: client.publish(subject, value.encode())
    begun[0].cancel()
    await client.close()


async def fan_out(tool: str) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        async with at_work(tool, "fan_out") as publish:
            await publish("orders", "tea")
            lines = await printed(out, {"bill tea", "pack tea"})
    return sorted({line for line in lines if not line.endswith("probe")})


async def worker(tool: str) -> list[str]:
    wanted = {"charged ada", "gave up expired"}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        async with at_work(tool, "worker") as publish:
            for card in ("ada", "expired"):
                await publish("charges", card)
            lines = await printed(out, wanted)
    return sorted(lines)


def celery_worker() -> list[str]:
    """Celery's own test worker, on its transport in memory."""
    start_worker = import_module("celery.contrib.testing.worker").start_worker
    program = import_module("worker")
    program.app.conf.update(broker_url="memory://", worker_redirect_stdouts=False)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with start_worker(program.app, perform_ping_check=False, pool="solo"):
            for card in ("ada", "expired"):
                program.charge.delay(card)
            until = time.monotonic() + LIMIT
            while "gave up expired" not in out.getvalue() or "charged ada" not in out.getvalue():
                assert time.monotonic() < until, out.getvalue()
                time.sleep(0.05)
    return sorted(out.getvalue().splitlines())


SERVE = {
    "runnel": ["-m", "runnel", "worker", "rpc:broker"],
    "faststream": ["-m", "faststream", "run", "rpc:app"],
    "nats": ["rpc.py"],
}


def rpc(tool: str) -> list[str]:
    """The service in a process of its own, and the caller in another, which may come too early."""
    service = subprocess.Popen([sys.executable, *SERVE[tool]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LIMIT
        while True:
            caller = [sys.executable, "rpc.py", *(["ask"] if tool == "nats" else [])]
            asked = subprocess.run(caller, capture_output=True, text=True, timeout=LIMIT)
            if asked.returncode == 0:
                return asked.stdout.splitlines()
            assert time.monotonic() < until, asked.stderr
    finally:
        service.kill()
        service.wait()


async def live_page(tool: str) -> list[str]:
    """What a page shows: it comes, loses its connection, and comes back."""
    import httpx
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(import_module("live_page").app, port=0, log_level="error", lifespan="on"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    shown: list[str] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT) as client:
        headers: dict[str, str] = {}
        for text in ("hello", "again"):
            await client.post("/rooms/tea", params={"text": text})
            async with client.stream("GET", "/rooms/tea/events", headers=headers) as events:
                event: dict[str, str] = {}
                async for line in events.aiter_lines():
                    name, _, value = line.partition(": ")
                    event[name] = value
                    if not line and "data" in event and event.get("event") is None:
                        headers["last-event-id"] = event["id"]
                        shown.append(text if text in event["data"] else event["data"])
                        break
                    if not line:
                        event = {}
    server.force_exit = True
    await server.shutdown()
    return shown


def jobs(tool: str) -> Iterator[str]:
    """Run every job that there is a program for; a line for each."""
    if Path("fan_out.py").exists():
        yield f"fan_out {asyncio.run(fan_out(tool))}"
    if Path("worker.py").exists():
        yield f"worker {celery_worker() if tool == 'celery' else asyncio.run(worker(tool))}"
    if Path("rpc.py").exists():
        yield f"rpc {rpc(tool)}"
    if Path("live_page.py").exists():
        yield f"live_page {asyncio.run(live_page(tool))}"


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    sys.path.insert(0, sys.argv[2])
    for line in jobs(sys.argv[1]):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
