"""The files of `--auth`: read, watched and, for tokens, replaced atomically. runnel never writes FILE itself."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runnel.core.errors import InvalidOption
from runnel.security.jwt_claims import JwtConfig, VerifyingKey, key_of_secret, keys_of_jwks
from runnel.security.policy import AuthPolicy
from runnel.security.tokens import ID_BYTES, SECRET_BYTES, TokenTable

MODE = 0o600
FETCH_TIMEOUT = 10.0  # seconds for the address of a JWKS
MAX_JWKS = 1 << 20


def tokens_path(file: Path) -> Path:
    """Where the tokens of an `--auth` file are."""
    return file.with_name(f"{file.name}.tokens")


def random_bytes() -> bytes:
    """The secret of a new token."""
    return secrets.token_bytes(ID_BYTES + SECRET_BYTES)


class AuthFiles:
    """FILE, and FILE.tokens beside it."""

    def __init__(self, file: Path) -> None:
        self.file, self.tokens_file = file, tokens_path(file)

    def read_policy(self) -> AuthPolicy:
        """The rules and tokens that are in the files now; an error names the file and the reason."""
        try:
            text = self.file.read_text()
            document = tomllib.loads(text)
        except FileNotFoundError:
            raise InvalidOption("auth", str(self.file), "there is no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption("auth", str(self.file), f"it cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise InvalidOption("auth", str(self.file), f"it is not TOML: {error}") from None
        tokens = self.read_tokens()
        try:
            return AuthPolicy.of(document, tokens)
        except InvalidOption as error:
            where = f"{self.file}{_line_of(text, error.option)}"
            said = f" is {error.value!r}" if error.value != "…" else ""  # of other values, which may be secrets
            raise InvalidOption("auth", where, f"{error.option}{said}: {error.why}") from None

    def read_tokens(self) -> TokenTable:
        """The tokens; none if the file is not there. One that others may read is refused."""
        path = self.tokens_file
        try:
            with path.open("rb") as opened:
                mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
                if mode & 0o077:
                    why = f"others than its owner may read or write it (mode {mode:o}): chmod 600 {path}"
                    raise InvalidOption("auth", str(path), why)
                return TokenTable.read(opened.read())
        except FileNotFoundError:
            return TokenTable(is_written=False)
        except OSError as error:
            raise InvalidOption("auth", str(path), f"it cannot be read: {error.strerror}") from None

    def edit_tokens(self, change: Callable[[TokenTable], TokenTable]) -> None:
        """Replace the tokens by what `change` makes of them. Others that edit them wait: no change is lost.

        The lock is on FILE, for the file of tokens is another one after each change.
        """
        try:
            with self.file.open("rb") as locked:
                fcntl.flock(locked, fcntl.LOCK_EX)
                self.write_tokens(change(self.read_tokens()))
        except OSError as error:
            raise InvalidOption("auth", str(self.file), f"it cannot be read: {error.strerror}") from None

    def write_tokens(self, tokens: TokenTable) -> None:
        """Replace the file: readers see all of the old one or all of the new one."""
        path = self.tokens_file
        new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        try:
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
            try:
                data = tokens.encoded()
                while data:  # a disk that is nearly full takes a part
                    data = data[os.write(handle, data) :]
                os.fsync(handle)
            finally:
                os.close(handle)
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise InvalidOption("auth", str(path), f"it cannot be written: {error.strerror}") from None
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def stamp(self) -> tuple[Any, ...]:
        """Changes when the file of tokens was replaced."""
        try:
            found = self.tokens_file.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size  # ctime: also of chmod

    def read_keys(self, config: JwtConfig | None) -> list[VerifyingKey]:
        """The keys that verify JWTs, from a file or an address. Blocks."""
        if config is None:
            return []
        try:
            if config.secret_file is not None:
                return [key_of_secret(self._beside(config.secret_file).read_bytes())]
            assert config.jwks is not None, "checked"
            if config.jwks.startswith("https://"):
                with _opened(config.jwks) as answer:
                    return keys_of_jwks(answer.read(MAX_JWKS))
            return keys_of_jwks(self._beside(config.jwks).read_bytes())
        except OSError as error:
            raise InvalidOption("jwt", config.secret_file or config.jwks, f"no keys can be read: {error}") from None

    def _beside(self, name: str) -> Path:
        return self.file.parent / name


def _line_of(text: str, key: str) -> str:
    """`:12`, the line of a TOML text that has `key`, or the innermost table around it; empty: no line is known."""
    wanted, table, best, found = key.split("."), [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        said = re.match(r"\s*(\[{0,2})\s*([^=\]#]+)", line)
        if said is None:
            continue
        parts = [one.strip(" \t\"'") for one in said[2].split(".")]
        if said[1]:
            table = parts
        path = parts if said[1] else [*table, *parts]
        common = min(len(path), len(wanted))
        if best < common and path[:common] == wanted[:common]:
            best, found = common, f":{number}"
    return found


def _opened(address: str) -> Any:
    """An address that is opened. It may lead on to others, but to none without TLS: they could replace the keys."""
    from urllib.request import HTTPRedirectHandler, build_opener  # only servers that fetch keys pay for it

    class SafeRedirects(HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if not newurl.startswith("https://"):
                raise OSError(f"{address} leads to an address without TLS")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return build_opener(SafeRedirects).open(address, timeout=FETCH_TIMEOUT)
