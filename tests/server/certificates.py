"""Certificates for tests, made by the openssl command."""

import ssl
import subprocess
from pathlib import Path


class Authority:
    """A certificate authority: `issue` makes a certificate and its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.cert, "-subj", "/CN=a test authority"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of a certificate for this machine, and of its key."""
        cert, key, asked, said = (self._folder / f"{name}.{ending}" for ending in ("pem", "key", "csr", "ext"))
        # Python 3.13 checks certificates strictly: without the key of its authority one is refused.
        said.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
        _openssl(
            *("x509", "-req", "-in", asked, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", "2", "-extfile", said, "-out", cert),
        )
        return cert, key

    def trusting(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """How a client connects that trusts this authority, and perhaps shows a certificate itself."""
        context = ssl.create_default_context(cafile=self.cert)
        if client is not None:
            context.load_cert_chain(*client)
        return context


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
