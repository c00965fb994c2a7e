"""Sealed texts: what a browser keeps for us (sessions, tickets, CSRF tokens), signed so that it cannot be changed.

A sealed text is readable, so it holds no secret. Every kind has a key of its own, derived from one of the backend: a
ticket is no session, and all servers of one backend accept what one of them sealed. Time is an argument.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypeVar

import msgspec

from runnel.core.errors import NotAuthenticated, TokenExpired
from runnel.security.policy import Identity

KEY_BYTES = 32
MAX_SEALED = 8192  # characters
TICKET_SECONDS = 30.0
TICKET_BYTES = 16
_MAC_BYTES = 32

T = TypeVar("T")


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A login in a browser. `events`: patterns that it is for, when a ticket made it; None: for everything.

    `parent`: the session in which that ticket was requested. It ends with that one. `ticket`: the id of that ticket.
    """

    id: str
    identity: Identity
    since: float
    expires: float
    events: tuple[str, ...] | None = None
    parent: str = ""
    ticket: str = ""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket that opens one event stream or WebSocket, once. `id` has 128 random bits."""

    id: str
    identity: Identity
    topics: tuple[str, ...]
    origin: str
    expires: float
    session: str = ""  # in which it was requested; "": with a token


def seal(key: bytes, content: Session | Ticket) -> str:
    """The text of `content`."""
    body = msgspec.json.encode(content)
    return urlsafe_b64encode(_mac(key, type(content), body) + body).decode().rstrip("=")


def unseal(key: bytes, text: str, kind: type[T], now: float) -> T:
    """The value that was sealed as `kind`; `NotAuthenticated` if it was not, `TokenExpired` if its time is over."""
    what = kind.__name__.lower()
    if len(text) > MAX_SEALED:
        raise NotAuthenticated(f"the {what} is too long")
    try:
        data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise NotAuthenticated(f"the {what} is not one of this server") from None
    mac, body = data[:_MAC_BYTES], data[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, kind, body)):
        raise NotAuthenticated(f"the {what} is not one of this server")
    try:
        found: Any = msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        raise NotAuthenticated(f"the {what} is of another version of this server") from None
    if not now < found.expires:
        raise TokenExpired()
    return found  # type: ignore[no-any-return]


def csrf_token(key: bytes, session: str) -> str:
    """The token that a page of the session with this id has to send with what changes something."""
    return hmac.new(key, b"csrf\0" + session.encode(), hashlib.sha256).hexdigest()


def is_csrf_token(key: bytes, session: str, token: str) -> bool:
    """Whether `token` is that of the session. In constant time."""
    return hmac.compare_digest(csrf_token(key, session).encode(), token.encode(errors="replace"))


def _mac(key: bytes, kind: type, body: bytes) -> bytes:
    return hmac.new(key, kind.__name__.encode() + b"\0" + body, hashlib.sha256).digest()
