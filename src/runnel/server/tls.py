"""TLS as a server speaks it: 1.2 and later, with clients' certificates if they are asked for."""

from __future__ import annotations

import ssl

from runnel.core.errors import InvalidOption
from runnel.server.options import TlsOptions


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """The context for `options`, or an error that names the file that does not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for option in ("cert", "key", "client_ca"):
        path = getattr(options, option)
        if path is not None and not path.is_file():
            raise InvalidOption(option, str(path), "there is no such file")
    try:
        # A passphrase would be asked for on the terminal: a server that hangs there helps nobody.
        context.load_cert_chain(options.cert, options.key, password=b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = f"{options.cert} and {options.key} are no certificate with its key, in PEM, without passphrase: {error}"
        raise InvalidOption("cert", str(options.cert), why) from error
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except (ssl.SSLError, OSError) as error:
            raise InvalidOption("client_ca", str(options.client_ca), f"no certificates in PEM: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
