"""Signatures by nkey: the same as those of another implementation of Ed25519."""

from base64 import b32encode, urlsafe_b64decode

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from runnel import InvalidOption
from runnel.wire.nats_auth import Nkey, _crc16, read_creds


def seed_of(raw: bytes, kind: int = 20 << 3) -> str:
    body = bytes([18 << 3 | kind >> 5, (kind & 31) << 3]) + raw
    return b32encode(body + _crc16(body).to_bytes(2, "little")).rstrip(b"=").decode()


@pytest.mark.parametrize("raw", [bytes(32), bytes(range(32)), b"\xff" * 32])
def test_a_signature_is_that_of_ed25519(raw: bytes) -> None:
    key, oracle = Nkey(seed_of(raw)), Ed25519PrivateKey.from_private_bytes(raw)
    assert key.sign(b"nonce") == oracle.sign(b"nonce")
    said = key.signature("abc")
    assert urlsafe_b64decode(said + "=" * (-len(said) % 4)) == oracle.sign(b"abc")
    public = oracle.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    body = bytes([20 << 3]) + public
    assert key.public == b32encode(body + _crc16(body).to_bytes(2, "little")).rstrip(b"=").decode()
    assert key.public.startswith("U")


def test_a_seed_that_is_mistyped_or_of_another_kind_is_refused_without_being_shown() -> None:
    good = seed_of(bytes(32))
    for wrong in ("", "x", good[:-1], good[:-1] + ("A" if good[-1] != "A" else "B"), seed_of(bytes(32), 0)):
        with pytest.raises(InvalidOption) as caught:
            Nkey(wrong)
        assert len(wrong) < 5 or wrong not in str(caught.value)


def test_a_creds_file_gives_the_jwt_and_the_key() -> None:
    seed = seed_of(bytes(32))
    text = (
        "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.sig\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    token, key = read_creds(text)
    assert (token, key.public) == ("eyJ0.eyJq.sig", Nkey(seed).public)
    with pytest.raises(InvalidOption):
        read_creds("nothing")
