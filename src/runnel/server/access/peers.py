"""The identity of a peer from its transport: the subject of its certificate, or the user of its process."""

from __future__ import annotations

import pwd
import socket
import struct
from collections.abc import Mapping
from typing import Any

from runnel.server.access.control import UnixPeer

_CREDENTIALS = struct.Struct("3i")


def unix_peer(sock: Any) -> UnixPeer | None:
    """The process at the other end of a Unix socket; None: it is no Unix socket, or the system does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if sock is None or option is None or sock.family != socket.AF_UNIX:
        return None
    try:
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    except OSError:
        return None
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid:{uid}"
    return UnixPeer(pid, uid, user)


def certificate_subject(certificate: Mapping[str, Any] | None) -> dict[str, str] | None:
    """The parts of the subject of a verified client certificate, as `ssl` shows it; None: there is none.

    A part that is there twice is left out: which of the two names the peer would be a guess.
    """
    if not certificate:
        return None
    found: dict[str, str] = {}
    doubled: set[str] = set()
    for group in certificate.get("subject", ()):
        for name, value in group:
            (doubled.add(name) if name in found else found.__setitem__(name, value))
    return {name: value for name, value in found.items() if name not in doubled}


def facts_of(transport: Any) -> dict[str, Any]:
    """The facts that `AccessControl.login` gets from the transport."""
    return {
        "certificate": certificate_subject(transport.get_extra_info("peercert")),
        "unix": unix_peer(transport.get_extra_info("socket")),
    }
