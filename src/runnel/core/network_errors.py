"""What can go wrong between a client and a server: addresses, connections, limits, what a peer says.

They hang in the same tree as all others: see `runnel.core.errors`.
"""

from __future__ import annotations

from runnel.core.errors import NotNow, RunnelError, UsageError


class BadAddress(UsageError):
    """An address that no server can be reached by."""

    code = "bad_address"

    def __init__(self, url: object, why: str) -> None:
        self.url, self.why = url, why
        super().__init__(
            f"{url!r} is not the address of a server: {why}; "
            "use 'runnel://host:7788', 'runnels://host:7788' (TLS) or 'runnel+unix:///path/to/socket'"
        )


class Unreachable(NotNow):
    """Nobody answered at the address, or not in time."""

    code = "unreachable"

    def __init__(self, address: str, why: str) -> None:
        self.address, self.why = address, why
        super().__init__(
            f"no server could be reached at {address}: {why}; see that one runs there (`runnel serve`), and retry"
        )


class ConnectionLost(NotNow):
    """The connection ended while something was under way that may not be sent twice."""

    code = "connection_lost"

    def __init__(self, address: str, why: str) -> None:
        self.address, self.why = address, why
        super().__init__(
            f"the connection to {address} was lost: {why}; what was under way may have been done or not: "
            "look first, then do it again. The client connects again by itself"
        )


class NoAnswer(NotNow, TimeoutError):
    """A server did not answer within the time that its client waits."""

    code = "no_answer"

    def __init__(self, what: str, seconds: float, state: str) -> None:
        self.what, self.seconds, self.state = what, seconds, state
        super().__init__(
            f"no answer to {what} within {seconds:g} s ({state}); it may still be done, or may have been: look first, "
            "then do it again, or open the broker with a longer timeout"
        )


class PublishCancelled(NotNow):
    """Whoever published gave up before the server had stored it."""

    code = "publish_cancelled"

    def __init__(self) -> None:
        super().__init__(
            "the publish was cancelled while it waited, and nothing of it was stored unless it was being written "
            "already; publish it again, with its number or message_id if it may be stored only once"
        )


class ProtocolError(RunnelError):
    """A peer sent something that the protocol does not know. The connection ends."""

    code = "protocol_error"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"the protocol was broken: {why}; see that both sides speak the same protocol and version, on this port"
        )


class BadCommand(UsageError):
    """A line of JSON that is no command, or lacks something. The connection goes on."""

    code = "bad_command"

    def __init__(self, why: str, *, field: str | None = None, form: str | None = None) -> None:
        self.why, self.field = why, field
        self.form = form or '{"command": "SUB", "topic": "test"}'
        super().__init__(f'{why}; send a line such as {self.form}, or {{"command": "HELP"}}')


class LimitExceeded(UsageError):
    """More, larger or longer than a server lets a client be. The limit is named."""

    code = "limit_exceeded"

    def __init__(self, limit: str, value: float, allowed: float) -> None:
        self.limit, self.value, self.allowed = limit, value, allowed
        super().__init__(f"{value:,} is over {limit}={allowed:,}; ask for less at once, or raise {limit} of the server")


class OriginRefused(UsageError):
    """A page of another origin wanted to use the HTTP door, and nobody said that it may."""

    code = "origin_refused"

    def __init__(self, origin: str) -> None:
        self.origin = origin
        super().__init__(f"pages of {origin} may not use this server; name the origin in its http_cors if they may")


class HostRefused(UsageError):
    """A request came by a name that the HTTP door does not answer to: a page may have pointed it there."""

    code = "host_refused"

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(
            f"this server does not answer to the name {host!r}; ask for localhost or its address, or name it in its "
            "http_hosts if it is the server's"
        )


class AddressInUse(UsageError):
    """Another program listens there already."""

    code = "address_in_use"

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(
            f"{address} is in use by another program; stop that one, or choose another port (0: any that is free)"
        )


class PublicBindRefused(UsageError):
    """A server without any check of who comes was to listen where others can reach it."""

    code = "public_bind_refused"

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(
            f"{host} can be reached from other machines, and this server asks nobody who they are; "
            "listen on 127.0.0.1, or say --insecure-public (insecure_public=True) if the network itself is trusted"
        )
