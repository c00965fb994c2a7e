"""`runnel promote`: turn a standby into a primary."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import runnel
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, USAGE, CommandError
from runnel.cli.output import human_time, print_document
from runnel.cli.server_address import DEFAULT_SERVER, add_token, load_settings, server_url
from runnel.core.errors import RunnelError

EXAMPLE = """\
examples:
  runnel promote --server runnel://10.0.0.8                        of a primary with `--standby sync`
  runnel promote --server runnel://10.0.0.8 --primary-is-down      of any: you have made sure of that
  runnel promote --server runnel://10.0.0.8 --fence 'ssh 10.0.0.7 systemctl stop runnel'
  runnel promote --data /var/lib/runnel --primary-is-down          the folder of a standby that does not run

A synchronous standby has all that the primary acknowledged: it waits until the lease that it gave the primary has ended
(5 seconds, unless `standby_lease` says otherwise), and takes over. An asynchronous one cannot know whether the primary
still acknowledges: say that it is down, or name a command that makes sure of it (exit code 0). What the primary
acknowledged and did not send is not there: its journal keeps that.
The promoted journal has a new id and a new generation, and no position is given twice. Clients of
`runnel://primary,standby` go over by themselves, and an old primary that comes back is stopped by the generation.
"""

CALL_TIMEOUT = 120.0


def add_to(commands: Commands) -> None:
    """Make `runnel promote` known."""
    parser = add_command(commands, "promote", "turn a standby into a primary", EXAMPLE, run)
    parser.add_argument("--server", metavar="URL", help=f"the standby (default: $RUNNEL_SERVER, else {DEFAULT_SERVER})")
    parser.add_argument("--data", metavar="DIR", help="the folder of a standby that does not run")
    parser.add_argument(
        "--primary-is-down", action="store_true", help="you have made sure that the primary is down and stays down"
    )
    parser.add_argument("--fence", metavar="CMD", help="a command that ends the primary: exit code 0 means that it did")
    add_token(parser)
    add_json(parser, "one JSON document")


def run(chosen: argparse.Namespace) -> int:
    """Fence if asked to, and promote."""
    if chosen.server and chosen.data:
        raise CommandError("usage_error", "name a server or a folder, not both", USAGE)
    if chosen.fence:
        fence(chosen.fence)
    is_down = chosen.primary_is_down or chosen.fence is not None
    done = _folder(Path(chosen.data), is_down) if chosen.data else asyncio.run(_server(chosen, is_down))
    if chosen.json:
        print_document(done)
    else:
        print(f"Promoted to generation {done['generation']}{done.pop('more', '')}.")
    return FINE


def fence(command: str) -> None:
    """Run the fencing command; raise unless it says that the primary has ended."""
    try:
        done = subprocess.run(shlex.split(command), check=False)
    except OSError as error:
        raise CommandError(
            "fence_failed", f"{command!r} could not be run: {error}; the standby was not promoted"
        ) from None
    if done.returncode:
        raise CommandError(
            "fence_failed",
            f"{command!r} ended with {done.returncode}: the primary may be up; the standby was not promoted",
        )


async def _server(chosen: argparse.Namespace, is_down: bool) -> dict[str, Any]:
    url = server_url(chosen.server or load_settings().general.server or DEFAULT_SERVER, chosen)
    async with runnel.open(url, operator=True, timeout=CALL_TIMEOUT) as broker:
        done: dict[str, Any] = await broker.backend.administer("promote", {"primary_is_down": is_down})
    deadline = time.monotonic() + CALL_TIMEOUT
    while True:  # its listeners change hands: it is done when it serves clients
        try:
            async with runnel.open(url, wait=1.0, backoff_min=0.01, backoff_max=0.05):
                return done
        except RunnelError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


def _folder(folder: Path, is_down: bool) -> dict[str, Any]:
    from runnel.core.errors import PromotionRefused
    from runnel.journal.backup.promotion import check_promotable, promote
    from runnel.journal.backup.replica import Replica
    from runnel.journal.folder_lock import FolderLock
    from runnel.journal.format import lineage
    from runnel.journal.storage import OsStorage

    if not folder.is_dir():
        raise PromotionRefused(f"{str(folder)!r} is not the folder of a standby")
    lock = FolderLock(folder)
    lock.take()
    try:
        found = lineage.load(OsStorage(folder))
        if found is None:
            raise PromotionRefused(f"{str(folder)!r} is not the folder of a standby")
        check_promotable(found, primary_is_down=is_down)
        if not is_down:
            time.sleep(found.lease)  # it may have been granted just before the standby ended
        done = promote(Replica.open(lock, load_settings().journal, found.primary))
    finally:
        lock.release()
    more = f", with everything up to {human_time(done.time)}; serve it with `runnel serve --data {folder}`"
    return {"origin": done.lineage.origin, "generation": done.lineage.number, "more": more}
