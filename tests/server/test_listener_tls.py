"""TLS: certificates that fit, clients that must show one, and what is said where something is wrong."""

import asyncio
import ssl
from pathlib import Path

import pytest

import runnel
from runnel.core.errors import InvalidOption, Unreachable
from runnel.server.listener import server_context
from runnel.server.options import TlsOptions
from tests.server.certificates import Authority
from tests.server.native_client import connected, serving


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("server")


async def test_a_client_that_trusts_the_authority_publishes_over_tls(
    authority: Authority, server_files: tuple[Path, Path]
) -> None:
    cert, key = server_files
    async with serving(ssl=TlsOptions(cert=cert, key=key)) as server:
        assert server.listeners[0].url.startswith("runnels://127.0.0.1:")
        async with connected(server, context=authority.trusting()) as raw:
            subscription = raw.subscribe("t")
            await raw.subscribed(subscription)
            large = bytes(range(256)) * 4096  # more than one read, and more than one TLS record
            await raw.published(raw.publish("t", large, b"two"))
            assert await raw.values(subscription, 2) == [large, b"two"]


async def test_plain_bytes_at_a_tls_listener_get_nowhere(server_files: tuple[Path, Path]) -> None:
    cert, key = server_files
    async with serving(ssl=TlsOptions(cert=cert, key=key)) as server:
        with pytest.raises((EOFError, ConnectionError)):
            async with connected(server):
                pass
        assert server.connections == 0


async def test_with_a_client_ca_only_those_with_a_certificate_come_in(
    authority: Authority, server_files: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = server_files
    async with serving(ssl=TlsOptions(cert=cert, key=key, client_ca=authority.cert)) as server:
        async with connected(server, context=authority.trusting(authority.issue("client"))) as raw:
            assert raw.welcome is not None
        stranger = Authority(tmp_path / "other").issue("stranger")
        for context in (authority.trusting(), authority.trusting(stranger)):
            with pytest.raises((EOFError, ssl.SSLError, ConnectionError)):
                async with connected(server, context=context):
                    pass
        url = f"runnels://127.0.0.1:{server.listeners[0].port}?ca={authority.cert}"
        with pytest.raises(Unreachable, match="client certificates, give cert and key"):
            await runnel.open(url).__aenter__()


async def test_a_client_that_never_finishes_the_handshake_is_cut_off(server_files: tuple[Path, Path]) -> None:
    cert, key = server_files
    async with serving(ssl=TlsOptions(cert=cert, key=key), hello_timeout=0.1) as server:
        reader, writer = await asyncio.open_connection(server.listeners[0].host, server.listeners[0].port)
        with pytest.raises((ConnectionError, EOFError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


def test_a_file_that_is_not_there_is_named(server_files: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = server_files
    nowhere = tmp_path / "nowhere.pem"
    for options, option in (
        (TlsOptions(cert=nowhere, key=key), "cert"),
        (TlsOptions(cert=cert, key=nowhere), "key"),
        (TlsOptions(cert=cert, key=key, client_ca=nowhere), "client_ca"),
    ):
        with pytest.raises(InvalidOption, match="no such file") as refused:
            server_context(options)
        assert refused.value.option == option


def test_files_that_are_no_certificates_are_refused(server_files: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = server_files
    text = tmp_path / "text.pem"
    text.write_text("not a certificate")
    for options in (
        TlsOptions(cert=text, key=key),
        TlsOptions(cert=key, key=cert),
        TlsOptions(cert=cert, key=key, client_ca=text),
    ):
        with pytest.raises(InvalidOption):
            server_context(options)


def test_old_versions_of_tls_are_not_spoken(server_files: tuple[Path, Path]) -> None:
    cert, key = server_files
    assert server_context(TlsOptions(cert=cert, key=key)).minimum_version is ssl.TLSVersion.TLSv1_2
