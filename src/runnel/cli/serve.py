"""`runnel serve`: options and settings of a server process.

Its options are the keys of the configuration, read from the structs that use them. The server is imported when it
runs, so that `--help` stays fast.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import USAGE, CommandError
from runnel.config.keys import ConfigKey, keys
from runnel.config.settings import Settings, load

if TYPE_CHECKING:
    from runnel.postgres.config import RelayConfig

EXAMPLE = """\
examples:
  runnel serve                                   the folder data/, at 127.0.0.1:7788; JSON lines at 7789, HTTP at 7780
  runnel serve --memory                          nothing on disk
  runnel serve --data /var/lib/runnel --config /etc/runnel.toml
  runnel serve --port 0 --json-port off --json   any free port, printed in one JSON line
  runnel serve --unix run/runnel.sock            also a Unix socket
  runnel serve --backend runnel://10.0.0.7:7788  the topics of that server, at listeners here
  runnel serve --backend nats://a,b,c            the topics of a NATS cluster, at listeners here
  runnel serve --config relay.toml               with a table [relay]: also publishes rows of PostgreSQL
  runnel serve --auth auth.toml --tls-cert cert.pem --tls-key key.pem --host 0.0.0.0
                                                 for other machines: peers log in (runnel token --help)

Every option is also a key of the file and a variable of the environment: `runnel config show` lists them, with the
values that act and where each came from. An option wins over the environment, the environment over the file.

SIGTERM or Ctrl-C: it takes no more, answers what is under way, commits and closes, within --deadline. A second one
goes at once; what was acknowledged is on disk all the same. Exit code 0: stopped properly. 1: it could not start
(a port is taken, the folder is in use), or was not done by the deadline. 2: the configuration makes no sense.
SIGHUP, or `runnel reload`: it reads certificates, limits, the log level, and the rules and tokens of --auth again, and
keeps its connections. What else changed in the configuration is named in the log, and acts after a restart.
"""

# A full collection walks over every topic and record: 0.7 s for 150,000 topics. So it comes seldom; what dies young, as
# cycles in a server do, is collected as before, at most 100,000 objects at a time.
GC_THRESHOLDS = (10_000, 10, 50)

_GROUPS = {
    "where it listens": (
        "host",
        "port",
        "json_port",
        "http_port",
        "nats_port",
        "http_cors",
        "http_hosts",
        "unix",
        "auth",
        "insecure_public",
    ),
    "TLS": ("tls_cert", "tls_key", "tls_client_ca"),
    "how it runs": ("memory", "auto_create", "backend", "deadline", "telemetry", "log_level", "log_format"),
}


def add_to(commands: Commands) -> None:
    """Make `runnel serve` known."""
    parser = add_command(
        commands,
        "serve",
        "serve topics to other processes, from a folder or from memory",
        EXAMPLE,
        run,
        "Opens a folder (or none, with --memory) and serves it over TCP and, if asked, a Unix socket.\n"
        "Without authentication it listens on this machine only.",
    )
    where = "[--data DIR | --memory | --backend URL]"
    parser.usage = f"runnel serve {where} [--host NAME] [--port N] [--http-port N] [...]"
    parser.add_argument("--config", metavar="FILE", help="a TOML file (default: $RUNNEL_CONFIG, else runnel.toml)")
    add_keys(parser)
    add_json(parser, "the listeners as one JSON line, once they are open")


def add_keys(parser: argparse.ArgumentParser) -> None:
    """An option for every key that acts on a server."""
    known = keys()
    _add_key(parser, known["data"])
    placed = {f"serve.{name}": title for title, names in _GROUPS.items() for name in names}
    titles = [*_GROUPS, "limits", "the journal"]
    groups = {title: parser.add_argument_group(title) for title in titles}
    for dotted, key in known.items():
        if key.section:
            title = "the journal" if key.section == "journal" else placed.get(dotted, "limits")
            _add_key(groups[title], key)


def _add_key(to: Any, key: ConfigKey) -> None:
    shown = f"{key.doc} (default: {key.shown(key.default)})".replace("%", "%%").replace(" (default: -)", "")
    flags = [key.flag] if key.name != "fsync" else [key.flag, "--journal-fsync"]
    said: dict[str, Any] = {"dest": key.dotted, "help": shown}
    if key.kind == "yes or no":
        to.add_argument(*flags, nargs="?", const="true", metavar="true|false", **said)
    else:
        metavar = "|".join(key.choices) or {"seconds": "TIME", "bytes": "SIZE", "path": "PATH"}.get(key.kind)
        metavar = {"data": "DIR", "backend": "URL", "auth": "FILE"}.get(key.name, metavar)
        to.add_argument(*flags, metavar=metavar or ("N" if key.kind in ("number", "rate") else "NAME"), **said)


def settings_of(chosen: argparse.Namespace) -> Settings:
    """The settings that act, out of the flags, the environment and the file."""
    flags = {dotted: getattr(chosen, dotted) for dotted in keys() if hasattr(chosen, dotted)}
    settings = load(flags, os.environ, chosen.config)
    if settings.where("data") == "--data" and settings.serving.memory:
        said = settings.where("serve.memory")
        why = "say one of them" if said == "--memory" else "say --memory false"
        raise CommandError("usage_error", f"--data names a folder, and {said} means to store nothing: {why}", USAGE)
    if settings.serving.backend is not None:
        _check_backend(settings)
    if settings.history and (settings.serving.memory or settings.serving.backend is not None):
        why = "memory begins anew every time" if settings.serving.memory else "the server behind it has its own"
        where = settings.where("serve.memory" if settings.serving.memory else "serve.backend")
        raise CommandError("usage_error", f"[history] is for topics in a folder, and with {where} {why}", USAGE)
    return settings


def _check_backend(settings: Settings) -> None:
    """The server at the url keeps the topics: options about storing them here contradict it."""
    said = [key.flag for key in keys().values() if settings.where(key.dotted) == key.flag]
    asked = [key.flag for key in keys().values() if key.section == "journal"]
    contrary = next((one for one in said if one == "--data" or one in asked), None)
    if settings.serving.memory:
        contrary = settings.where("serve.memory")
    if contrary is not None:
        backend = settings.where("serve.backend")
        why = f"{backend} names the server that keeps the topics, and {contrary} says how to keep them here"
        raise CommandError("usage_error", f"{why}: say one of them", USAGE)


def run(chosen: argparse.Namespace) -> int:
    """Serve until a signal stops the process."""
    settings = settings_of(chosen)
    from runnel.cli.server_process import ServerProcess

    with server_settings(settings):
        relay, reread = relay_of(settings), partial(settings_of, chosen)
        return ServerProcess(settings, as_json=chosen.json, relay=relay, reread=reread).run()


@contextmanager
def server_settings(settings: Settings) -> Iterator[None]:
    """Logging, collector and limits of a process that serves."""
    from runnel.cli.process_settings import process_settings

    with process_settings(settings.serving.log_level, settings.serving.log_format):
        gc.set_threshold(*GC_THRESHOLDS)
        with suppress(OSError, ValueError):  # every connection is a handle, and the usual limit is low
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        yield


def relay_of(settings: Settings) -> RelayConfig | None:
    """The relay that the file asks for, which the server runs in its process; None: it has no table [relay]."""
    if settings.file is None or "relay" not in tomllib.loads(settings.file.read_text(encoding="utf-8")):
        return None
    if settings.serving.memory:
        why = "a relay needs a folder, or a server with one: its place must be on disk"
        raise CommandError(
            "usage_error", f"{settings.file} has a table [relay], and --memory keeps nothing: {why}", USAGE
        )
    from runnel.cli.relay import runnable_relay_config_of

    return runnable_relay_config_of(settings.file)
