"""`runnel.open`: choose the backend for a location.

A backend is imported when a location needs it: a program that opens a server URL loads no broker and no journal.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.core.errors import BadAddress, InvalidOption, NotSupported
from runnel.core.options import unknown_option
from runnel.core.telemetry import check_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runnel.api.broker import Broker
    from runnel.core.backend import Backend
    from runnel.core.clock import Clock
    from runnel.core.history import HistorySource

_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_ALMOST_ADDRESS = re.compile(r"(runnels?|runnel\+unix|nats|tls)(?=[:/])(?::/*|//+|/(?=[^/]+:[0-9]{1,5}(?:[/?]|$)))(.*)")
SERVER_SCHEMES = ("runnel", "runnels", "runnel+unix")  # schemes of addresses
CLUSTER_SCHEMES = ("nats", "tls")


def open(
    where: str | Path | None = None,
    *,
    auto_create: bool = True,
    clock: Clock | None = None,
    history: HistorySource | Sequence[HistorySource] | None = None,
    telemetry: bool | float | None = None,
    **options: Any,
) -> Broker:
    """A broker, to be used with `async with`. The same class for every location.

    - None: in memory, in this process.
    - A folder, such as "data/": durable, in this process; it is made if need be. Others may open it at the same time:
      the first owns it, the others go through a socket in it, and when the owner is gone one of them takes over. With
      `share=False` it is this broker's alone: `FolderInUse` if another one has it. Other options: see `JournalOptions`,
      above all `fsync="commit"`, the default: what was acknowledged is on disk.
    - "runnel://host:port", or "runnels://" with TLS, or "runnel+unix:///path/to/socket": a server, which `runnel
      serve` starts. Options: see `ClientOptions`.
    - "nats://a:4222,b:4222,c:4222" ("tls://" with TLS): a NATS JetStream cluster, which replicates the topics. Options:
      see `ClusterOptions`.

    With `auto_create=False` topics must be declared before they are used. `clock` replaces the system's, for tests.
    `history`, of a folder: where records are that retention took from it, or several such sources of different topics;
    the broker closes them. Processes that share the folder have to give the same: the owner's acts.
    `telemetry`, in memory or of a folder: seconds after which the broker publishes what happened in it to
    `$runnel.telemetry.*` (True: every 10), for the analytics pipeline, the console and `runnel pipeline report`.
    """
    sources, interval = _sources(history), check_interval(telemetry)
    if interval is not None and isinstance(where, str) and "://" in where:
        raise InvalidOption("telemetry", telemetry, "a server publishes its own: see `runnel serve --telemetry`")
    if sources and where is None:
        raise InvalidOption("history", history, "a broker in memory begins anew every time: open a folder")
    if sources and isinstance(where, str) and "://" in where:
        raise InvalidOption("history", history, "a server has its own: see [history] of `runnel serve`")
    if where is None:
        for name, value in options.items():
            raise InvalidOption(name, value, _needs_a_place(name))
        return _broker(_local(auto_create, clock, telemetry=interval))
    if isinstance(where, str) and "://" in where:
        return _broker(_remote(where, auto_create, clock, options))
    if not isinstance(where, str | Path) or not str(where):
        raise InvalidOption("where", where, "expected None, the path of a folder, or the address of a server")
    if isinstance(where, str):
        check_is_folder(where)
    return _broker(_local(auto_create, clock, Path(where), options, sources, interval))


def visit(where: str | Path, *, stays: bool = False, **options: Any) -> Broker:
    """As `open`, for a command: with a folder that has an owner it is a client, and does not take over from it.

    `stays`: it may last; if it owns the folder, since no process did, it releases it when `runnel serve` starts.
    """
    broker = open(where, **options)
    if not (isinstance(where, str) and "://" in where):
        from runnel.opening.shared_folder import SharedBackend

        if isinstance(broker.backend, SharedBackend):
            broker.backend.visits, broker.backend.stays = True, stays
    return broker


def check_is_folder(where: str) -> None:
    """Raise for the path of a new folder that looks like an address with a typing mistake, or like SQLite's memory."""
    meant = intended_address(where)
    if meant is not None and not Path(where).exists():
        shown = repr(f"./{where}") if "@" not in where else "'./' before it"  # what is before @ may be a password
        why = f"did you mean {meant}? A new folder of that name is asked for with {shown}"
        raise BadAddress(where if "@" not in where else "…", why)


def intended_address(where: str) -> str | None:
    """What was meant by a text that is nearly an address, to be shown; None: it is not."""
    if where == ":memory:":
        return "runnel.open(), a broker in memory"
    if _HOST_AND_PORT.fullmatch(where):
        return f"'runnel://{where}'"
    if (found := _ALMOST_ADDRESS.fullmatch(where)) is None:
        return None
    scheme, rest = found.groups()
    return repr(without_password(f"{scheme}://{'/' if scheme == 'runnel+unix' else ''}{rest}"))


def _needs_a_place(option: str) -> str:
    """Why a broker in memory has no such option: the first argument of `open` is missing, or the name is wrong."""
    from runnel.journal.options import JournalOptions

    if option == "share" or option in JournalOptions.__struct_fields__:
        return f"it is an option of a folder: give one, as in open('data/', {option}=...)"
    return "a broker in memory takes auto_create, clock and telemetry"


def _sources(history: HistorySource | Sequence[HistorySource] | None) -> tuple[HistorySource, ...]:
    if history is None:
        return ()
    sources = tuple(history) if isinstance(history, list | tuple) else (history,)
    for source in sources:
        if not callable(getattr(source, "read_sequences", None)):
            raise InvalidOption("history", source, "expected a HistorySource, or a list of them")
    return sources


def _broker(backend: Backend) -> Broker:
    from runnel.api.broker import Broker

    return Broker(backend)


def _local(
    auto_create: bool,
    clock: Clock | None,
    path: Path | None = None,
    options: dict[str, Any] | None = None,
    history: Sequence[HistorySource] = (),
    telemetry: float | None = None,
) -> Backend:
    from runnel.broker.backend import LocalBackend

    if path is None:
        return LocalBackend(auto_create=auto_create, clock=clock, telemetry=telemetry)
    from runnel.journal.options import JournalOptions

    share, chosen = _shared(dict(options or {}))
    for name, value in chosen.items():
        if name not in JournalOptions.__struct_fields__:
            known = ("auto_create", "clock", "history", "telemetry", "share", *JournalOptions.__struct_fields__)
            raise unknown_option("a broker with a folder", name, value, known)
    kept = JournalOptions(**chosen)
    if share:
        from runnel.opening.shared_folder import SharedBackend

        return SharedBackend(path, kept, auto_create=auto_create, clock=clock, history=history, telemetry=telemetry)
    from runnel.broker.durable.folder import BrokerFolder

    folder = BrokerFolder(path, kept)
    return LocalBackend(auto_create=auto_create, clock=clock, folder=folder, history=history, telemetry=telemetry)


def _shared(options: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether the folder is shared, if the platform has Unix sockets; and the other options."""
    share = options.pop("share", True)
    if not isinstance(share, bool):
        raise InvalidOption("share", share, "expected True or False")
    return share and hasattr(socket, "AF_UNIX"), options


def open_server(url: str, **options: Any) -> Broker:
    """The broker of a server or a cluster, for a gateway in front of it; `BadAddress` for other locations."""
    scheme = url.partition("://")[0]
    if scheme not in (*SERVER_SCHEMES, *CLUSTER_SCHEMES):
        raise BadAddress(without_password(url), f"{scheme!r} is none of the ways to reach one")
    return _broker(_remote(url, True, None, options))


def without_password(url: str) -> str:
    """An address as it may be shown: without the user and password, or token, that a cluster's may have."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + ",".join(one.rpartition("@")[2] for one in rest.split(","))


def _remote(url: str, auto_create: bool, clock: Clock | None, options: dict[str, Any]) -> Backend:
    scheme = url.partition("://")[0]
    if scheme in CLUSTER_SCHEMES:
        from runnel.cluster.backend import ClusterBackend

        return ClusterBackend.at(url, auto_create=auto_create, clock=clock, **options)
    if scheme not in SERVER_SCHEMES:
        known = ", ".join(f"{name}://" for name in (*SERVER_SCHEMES, *CLUSTER_SCHEMES))
        raise NotSupported(f"open({url!r})", f"an address begins with {known}; a folder is given as a path: 'data/'")
    from runnel.client.backend import RemoteBackend

    return RemoteBackend.at(url, auto_create=auto_create, clock=clock, **options)
