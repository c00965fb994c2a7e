"""Options that every connection to another machine has: how each is checked, and the TLS context that they make."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from runnel.core.errors import InvalidOption

SECRETS = ("password", "token", "nkey")  # no error shows their values

Check = Callable[[str, Any], Any]


def seconds(option: str, value: Any) -> float:
    """A number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidOption(option, value, "expected a number of seconds above 0")
    return float(value)


def yes_or_no(option: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise InvalidOption(option, value, "expected True or False")
    return value


def text(option: str, value: Any) -> str | None:
    """Text, or a path; None: it was not given."""
    if value is None:
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value:
        raise InvalidOption(option, "..." if option in SECRETS else value, "expected text")
    return value


def context(option: str, value: Any) -> ssl.SSLContext | None:
    """A whole TLS context."""
    if value is not None and not isinstance(value, ssl.SSLContext):
        raise InvalidOption(option, value, "expected an ssl.SSLContext; or give ca, cert and key")
    return value


def checked(given: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Options that are known, each by its check."""
    return {name: checks[name](name, value) for name, value in given.items()}


class TlsOptions(Protocol):
    """The common options of two kinds of connections: TLS and reconnection."""

    @property
    def ssl(self) -> ssl.SSLContext | None: ...
    @property
    def ca(self) -> str | None: ...
    @property
    def cert(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def verify(self) -> bool: ...
    @property
    def backoff_min(self) -> float: ...
    @property
    def backoff_max(self) -> float: ...


def check_together(options: TlsOptions) -> None:
    """Raise for options that contradict one another."""
    if options.backoff_max < options.backoff_min:
        raise InvalidOption("backoff_max", options.backoff_max, f"it is below backoff_min={options.backoff_min:g}")
    if options.key is not None and options.cert is None:
        raise InvalidOption("key", options.key, "a key needs its certificate: give cert too")


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """The TLS context, where there is TLS."""
    if options.ssl is not None:
        return options.ssl
    try:
        made = ssl.create_default_context(cafile=options.ca)
        if options.cert is not None:
            made.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        option = "ca" if options.cert is None else "cert"
        raise InvalidOption(option, getattr(options, option), f"it cannot be loaded: {error}") from None
    if not options.verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made
