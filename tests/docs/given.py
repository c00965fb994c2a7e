"""What a page takes for granted: a function for each page that takes something, named as its file.

It makes files and programs that the reader has, and says what stands here for the reader's machines.
"""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from threading import Event, Thread

import pytest

import runnel
from tests.cli.conftest import Served
from tests.docs.blocks import extract, run
from tests.docs.shell import Shell
from tests.patience import PATIENCE
from tests.project.project import ROOT
from tests.server.certificates import Authority

TWO_LOOPBACKS = {"10.0.1.1": "127.0.0.1", "10.0.1.2": "127.0.0.2"}


def keep_it(shell: Shell) -> None:
    """The program of the third step has run, twice."""
    shutil.rmtree(shell.folder / "data")
    page = ROOT / "docs" / "tutorial" / "keep-it.md"
    (program,) = [one for one in extract(page.read_text()) if "started again" in one.source]
    assert run(page, program.line, shell.folder, PATIENCE).code == 0


def run_a_gateway(shell: Shell) -> None:
    """The server behind the gateways, and two addresses."""
    behind = Served(shell.folder, "--data", "behind")
    shell.given.callback(behind.end)
    shell.given.callback(behind.process.terminate)
    shell.names = {"10.0.0.7:7788": behind.url.removeprefix("runnel://"), **TWO_LOOPBACKS}


def upgrade(shell: Shell) -> None:
    """Two servers over one backend."""
    run_a_gateway(shell)
    for host in TWO_LOOPBACKS:
        shell.run(f"runnel serve --backend runnel://10.0.0.7:7788 --host {host} --insecure-public")


def responder(shell: Shell) -> None:
    """A server, and a program that squares."""
    shell.run("runnel serve --data data")
    assert shell.server is not None
    url, ready = shell.server.url, Event()

    async def answer() -> None:
        broker = runnel.open(url)

        @broker.on("square")
        async def square(number: int) -> int:
            return number * number

        async with broker:
            running = asyncio.create_task(broker.run(signals=False))
            await broker.ready()
            ready.set()
            await asyncio.to_thread(over.wait, PATIENCE)
            broker.stop()
            await running

    over, thread = Event(), Thread(target=lambda: asyncio.run(answer()))
    thread.start()
    shell.before_close.callback(thread.join, PATIENCE)
    shell.before_close.callback(over.set)
    assert ready.wait(PATIENCE)


request_and_reply = http = responder


def run_a_server(shell: Shell) -> None:
    """Certificates, and folders of this test instead of those of a machine."""
    certificates(shell)
    shutil.copy(shell.folder / "ca.pem", shell.folder / "clients.pem")
    (shell.folder / "run").mkdir()
    shell.names = {"/var/lib/runnel": "data", "/run/runnel/runnel.sock": "run/runnel.sock"}


def certificates(shell: Shell) -> None:
    """`ca.pem`, and of the server `cert.pem` and `key.pem`."""
    authority = Authority(shell.folder / "authority")
    cert, key = authority.issue("server")
    for made, name in ((authority.cert, "ca.pem"), (cert, "cert.pem"), (key, "key.pem")):
        shutil.copy(made, shell.folder / name)


def security(shell: Shell) -> None:
    """Certificates that the system trusts, an identity provider that has a token, and an application."""
    certificates(shell)
    shell.names = {"bus.example:7788": "localhost:7788", "runnels://bus.example": "runnels://localhost:7788"}
    shell.prelude = SECURITY
    shell.given.enter_context(pytest.MonkeyPatch.context()).setenv("SSL_CERT_FILE", str(shell.folder / "ca.pem"))


SECURITY = """\
import pathlib
from types import SimpleNamespace

import runnel
from starlette.applications import Starlette


class identity:
    @staticmethod
    async def token(audience):
        return SimpleNamespace(text=pathlib.Path("ops.token").read_text().strip())


app, broker = Starlette(), runnel.open()
"""


def nats_clients(shell: Shell) -> None:
    """A file of rules, which may be empty."""
    (shell.folder / "auth.toml").touch()


def look_after_a_folder(shell: Shell) -> None:
    """The snapshot of last monday."""
    shell.run("runnel log snapshot data/ backups/monday/")


def operate_a_folder(shell: Shell) -> None:
    """A moment that the archive has."""
    a_moment(shell)


def back_up_and_restore(shell: Shell) -> None:
    """A moment that the archive has."""
    a_moment(shell)


def a_moment(shell: Shell) -> None:
    shell.run("runnel backup data/ /backup/archive")
    shell.names = {"2026-05-01T12:00": datetime.now(UTC).isoformat()}
    with runnel.blocking.open(shell.folder / "data") as broker:
        broker.publish("orders", "after that moment")


def lake(shell: Shell) -> None:
    """A lake, and a typed topic."""
    shell.prelude = LAKE


LAKE = """\
import runnel, runnel.arrow
from runnel.lake import Lake

with runnel.blocking.open("data/") as broker:
    broker.topic("typed", dict[str, int]).publish({"amount": 2})
lake = Lake("lake/")
lake.create()
"""


def handlers(shell: Shell) -> None:
    """The module of the worker."""
    (shell.folder / "shop").mkdir()
    (shell.folder / "shop" / "orders.py").write_text(
        'import runnel\n\nbroker = runnel.open("data/")\n\n\n'
        '@broker.on("orders", group="shop")\nasync def pack(order: bytes) -> None: ...\n'
    )


def analytics(shell: Shell) -> None:
    """A broker that has published telemetry."""
    with runnel.blocking.open(shell.folder / "data", telemetry=0.1) as broker:
        broker.publish("orders", "tea")
        with broker.subscribe("$runnel.telemetry.topics", start="earliest") as rows:
            next(iter(rows))
