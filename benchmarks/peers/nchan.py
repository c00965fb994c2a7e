"""nchan: event streams by nginx itself, in C (Debian's `libnginx-mod-nchan`), with a configuration of our own.

It keeps messages in memory, and sends an id with each. A publish is one event: many are sent one behind the other on
one connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.harness import program
from benchmarks.processes import free_port, listening
from benchmarks.web_place import Place

NEEDED = "nginx with nchan (libnginx-mod-nchan)"
_FOLDERS = ("/usr/lib/nginx/modules", "/usr/share/nginx/modules", "/usr/lib64/nginx/modules")
_NGINX = "/usr/sbin/nginx"

CONFIGURATION = """
load_module {module};
{user}
daemon off;
worker_processes 1;
worker_rlimit_nofile 20000;
pid {folder}/nginx.pid;
error_log {folder}/error.log error;
events {{ worker_connections 16000; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    nchan_max_reserved_memory 128m;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = /publish {{ nchan_publisher; nchan_channel_id t; nchan_message_buffer_length 10000; }}
        location = /events {{
            nchan_subscriber eventsource;
            nchan_channel_id t;
            nchan_subscriber_first_message newest;
        }}
    }}
}}
"""


def module() -> Path | None:
    """The module, where it is installed."""
    found = (Path(folder) / "ngx_nchan_module.so" for folder in _FOLDERS)
    return next((one for one in found if one.exists()), None) if _nginx() else None


def _nginx() -> str | None:
    return program("nginx") or (_NGINX if Path(_NGINX).exists() else None)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Place]:
    """A server with one worker, and all its files in `folder`."""
    port, file = free_port(), folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    file.write_text(CONFIGURATION.format(module=module(), user=user, folder=folder, port=port))
    command = [_nginx() or "nginx", "-c", str(file), "-p", str(folder), "-e", str(folder / "error.log")]
    async with listening(command, port) as process:
        while not (workers := _children(process.pid)):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.02)
        yield Place(port, (process.pid, *workers), "/events", "/publish", many=False)


def _children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for one in Path("/proc").glob("[0-9]*/stat"):
        try:
            told = one.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(told[1]) == parent:
            found.append(int(one.parent.name))
    return found
