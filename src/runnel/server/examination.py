"""The checks of a server for `runnel doctor`: machine, journal, certificates, relays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.observe.checkup import (
    MISSING,
    OK,
    SOON,
    WRONG,
    Finding,
    certificates,
    clock,
    folder_findings,
    journal_findings,
    open_files,
    relay_findings,
    replication_findings,
)
from runnel.server.connections import is_this_machine

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker

BUSY = 0.9  # of the connections that there may be


async def examine(serving: ServedBroker, folder: Path | None) -> list[Finding]:
    """All findings. The disk is tried in a thread."""
    found = [Finding("runnel", OK, serving.version), open_files(), clock()]
    if folder is not None:
        found += await asyncio.to_thread(lambda: list(folder_findings(folder)))
    backend, now = serving.backend, serving.broker.clock.time()
    statistics = await backend.snapshot(limit=0)
    if statistics.journal is not None:
        found += journal_findings(statistics.journal, backend.fsync, now)
    elif not backend.is_remote and statistics.replication is None:
        found.append(Finding("journal", MISSING, "none: it serves from memory", "give it a folder to keep records"))
    found += replication_findings(statistics.replication)
    tls = serving.options.ssl
    if tls is not None:
        files = [("certificate", tls.cert), *([] if tls.client_ca is None else [("client CA", tls.client_ca)])]
        found += await asyncio.to_thread(lambda: list(certificates(files, now, serving.certificate_end)))
    return [*found, *_connections(serving), *_access(serving, now), *relay_findings(statistics.relays)]


def _connections(serving: ServedBroker) -> Iterator[Finding]:
    peers, wanted = serving.connections, serving.options.max_connections
    seen = f"{len(peers):,} of {peers.limit:,}; {peers.refused:,} were refused since the start"
    if peers.limit < wanted:
        advice = "raise the limit of open files (LimitNOFILE, ulimit -n): each connection is one"
        yield Finding("connections", WRONG, f"{seen}; max_connections is {wanted:,}", advice)
    elif len(peers) > BUSY * peers.limit:
        yield Finding("connections", WRONG, seen, "raise max_connections, then `runnel reload`")
    else:
        yield Finding("connections", OK, seen)
    if serving.memory.exceeded:
        seen = f"{serving.memory.exceeded:,} connections were closed since the start: clients do not read"
        advice = "see runnel top for clients that do not read; or raise max_held_bytes, then `runnel reload`"
        yield Finding("max_held_bytes", WRONG, seen, advice)


def _access(serving: ServedBroker, now: float) -> Iterator[Finding]:
    public = [one.url for one in serving.listeners if one.port and not is_this_machine(_address(one.host))]
    auth = serving.auth
    if auth is None:
        if public:
            advice = "give it --auth FILE: all who reach it may do everything"
            yield Finding("authentication", WRONG, f"off, and public: {', '.join(public)}", advice)
        else:
            yield Finding("authentication", OK, "off; it listens on this machine only")
        return
    yield Finding("authentication", OK, "on")
    if public and serving.options.ssl is None:
        advice = "give it --tls-cert and --tls-key, unless a proxy in front speaks TLS"
        yield Finding("TLS", WRONG, f"off: tokens and records are readable on the way to {', '.join(public)}", advice)
    ending = [one for one in auth.policy.tokens if one.expires is not None and now < one.expires < now + SOON]
    for token in ending:
        seen = f"it expires in {((token.expires or now) - now) / 86_400:.1f} days"
        yield Finding(f"token {token.id} of {token.name}", WRONG, seen, "make a new one: runnel token create")


def _address(host: str) -> str:
    return {"localhost": "127.0.0.1", "::1": "::/64"}.get(host, host)
