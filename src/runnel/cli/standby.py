"""`runnel standby`: follow the journal of a primary, and take its place when it is promoted."""

from __future__ import annotations

import argparse
import asyncio
import platform
from functools import partial

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.serve import add_keys, relay_of, server_settings, settings_of
from runnel.cli.server_address import DEFAULT_SERVER, add_token, load_settings, server_url

EXAMPLE = """\
examples:
  runnel standby --from runnel://10.0.0.7 --data /var/lib/runnel      on the second machine
  runnel promote                                                      there, when the primary is gone
  runnel standby --from runnel://10.0.0.8 --data /var/lib/runnel --rejoin
                                                                      the old primary becomes the standby
  runnel standby release --server runnel://10.0.0.7                   a synchronous primary goes on alone

Its other options are those of `runnel serve`: with them it serves once it is promoted, at the same listeners.
Until then these refuse clients, which try the next address of `runnel://primary,standby`; /healthz, /readyz and
/metrics answer, and so do `runnel info` and `runnel top`.
Following reads the whole journal: with authentication it needs a token of the role admin (--token-file).
Whether the primary waits for it is the primary's setting: `runnel serve --standby sync`.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel standby` known."""
    parser = add_command(
        commands,
        "standby",
        "follow the journal of a primary, ready to replace it",
        EXAMPLE,
        run,
        "Copies the journal of a server into a folder and follows it. When it is promoted it serves the topics.",
    )
    parser.usage = (
        "runnel standby --from URL [--data DIR] [--name NAME] [--rejoin] [options of runnel serve]\n"
        "       runnel standby release [--server URL]"
    )
    parser.add_argument("what", nargs="?", choices=("release",), help="release: let a primary continue alone")
    parser.add_argument("--from", dest="primary", metavar="URL", help="the primary, such as runnel://10.0.0.7:7788")
    parser.add_argument("--name", metavar="NAME", default=platform.node(), help="what the primary calls it")
    parser.add_argument(
        "--rejoin", action="store_true", help="the folder was a primary's: discard what the new primary does not have"
    )
    parser.add_argument("--server", metavar="URL", help=f"of release (default: $RUNNEL_SERVER, else {DEFAULT_SERVER})")
    parser.add_argument("--config", metavar="FILE", help="a TOML file (default: $RUNNEL_CONFIG, else runnel.toml)")
    add_token(parser)
    add_keys(parser)
    add_json(parser, "the listeners as one JSON line, once they are open, and again after the promotion")


def run(chosen: argparse.Namespace) -> int:
    """Follow until a signal stops the process, or serve after a promotion until then."""
    if chosen.what == "release":
        return _release(chosen)
    if not chosen.primary:
        raise CommandError("usage_error", "name the primary: --from runnel://HOST", USAGE)
    settings = settings_of(chosen)
    if settings.serving.memory or settings.serving.backend is not None:
        raise CommandError(
            "usage_error", "a standby keeps the journal in a folder: leave out --memory, --backend", USAGE
        )
    from runnel.cli.standby_process import StandbyProcess

    with server_settings(settings):
        return StandbyProcess(
            settings,
            server_url(chosen.primary, chosen),
            chosen.name,
            rejoin=chosen.rejoin,
            as_json=chosen.json,
            relay=relay_of(settings),
            reread=partial(settings_of, chosen),
        ).run()


def _release(chosen: argparse.Namespace) -> int:
    import runnel

    url = server_url(chosen.server or load_settings().general.server or DEFAULT_SERVER, chosen)

    async def ask() -> str | None:
        async with runnel.open(url, operator=True) as broker:
            found: str | None = await broker.backend.administer("release_standby", {})
            return found

    name = asyncio.run(ask())
    if name is None:
        print("The primary waits for no standby.")
        return FOUND
    print(
        f"The primary continues without {name}. Do not promote that standby: it will not have "
        "records that are acknowledged from now on."
    )
    return FINE
