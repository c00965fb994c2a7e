"""What `runnel serve` says when it is ready: its doors, who may come in, and three commands to try."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.cli.address import DEFAULT_SERVER
from runnel.cli.table import pairs
from runnel.config.settings import Settings

if TYPE_CHECKING:
    from runnel.server.serving import Door

_NAMES = {"native": "native", "json": "JSON lines", "unix": "Unix socket", "http": "HTTP"}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # listened on, but nothing to connect to


def facts(doors: Sequence[Door], settings: Settings) -> dict[str, Any]:
    """The same for programs: one line when it is ready."""
    engine = settings.serving.engine
    keeps = not settings.serving.memory and engine is None
    return {
        "event": "ready",
        "pid": os.getpid(),
        "data": settings.general.data if keeps else None,
        "fsync": settings.journal.fsync if keeps else None,
        **({} if engine is None else {"engine": engine}),
        "doors": [{"name": one.name, "url": one.url, "host": one.host, "port": one.port} for one in doors],
    }


def announcement(doors: Sequence[Door], settings: Settings, version: str, note: str | None = None) -> str:
    """What a person reads."""
    serving, server = settings.serving, settings.server
    if serving.engine is not None:
        what = f"is a gateway before {serving.engine}"
    elif serving.memory:
        what = "serves from memory: nothing is kept when it stops"
    else:
        what = f"serves the folder {settings.general.data!r}, fsync {settings.journal.fsync!r}"
    lines = [f"runnel {version} {what} (process {os.getpid()})", ""]
    lines += ["  " + line for line in pairs((_NAMES.get(one.name, one.name), one.url) for one in doors).splitlines()]
    lines.append("")
    if note is not None:
        lines.append(note)
    if server.insecure_public:
        lines.append("Nobody is asked who they are: whoever reaches these doors may read and write everything.")
    else:
        lines.append(f"Nobody is asked who they are, so it listens on this machine alone ({server.host}).")
    lines += ["", "Try, in another terminal:", *("  " + line for line in commands(doors)), "", "Ctrl-C stops it."]
    return "\n".join(lines)


def commands(doors: Sequence[Door]) -> list[str]:
    """Three commands that can be copied as they are."""
    command = command_name()
    native = next((one for one in doors if one.name in ("native", "unix")), None)
    url = DEFAULT_SERVER if native is None else _reached(native)
    server = "" if url == DEFAULT_SERVER else f" --server {shlex.quote(url)}"
    found = [f"{command} sub 'greetings.>'{server}", f"{command} pub greetings.world hello{server}"] if native else []
    lines = next((one for one in doors if one.name == "json"), None)
    if lines is not None and lines.url.startswith("tcp://"):  # nc speaks no TLS
        line = '{"command": "PUB", "topic": "greetings.world", "payload": "100"}'
        found.append(f"echo '{line}' | nc -w 1 {_EVERYWHERE.get(lines.host, lines.host)} {lines.port}")
    elif native is not None:
        found.append(f"{command} top{server}")
    return found


def _reached(door: Door) -> str:
    """An address that a client on this machine can use."""
    for listened, reached in _EVERYWHERE.items():
        if door.host == listened:
            shown = f"[{reached}]" if ":" in reached else reached
            return f"{door.url.partition('://')[0]}://{shown}:{door.port}"
    return door.url


def command_name() -> str:
    """How this command is called here: `runnel`, or the path of it. Safe to paste."""
    if shutil.which("runnel"):
        return "runnel"
    beside = Path(sys.executable).parent / "runnel"
    if not beside.exists():
        return f"{shlex.quote(sys.executable)} -m runnel"
    return shlex.quote(os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside))
