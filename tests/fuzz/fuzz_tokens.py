"""Credentials under fire: tokens, JWTs, sealed sessions and tickets, and the file of tokens are taken or refused."""

import contextlib

from runnel.core.errors import InvalidOption, NotAuthenticated, TokenExpired
from runnel.security.jwt_claims import JwtConfig, key_of_secret, keys_of_jwks, verify
from runnel.security.policy import Identity
from runnel.security.rules import fill_template, parse_rule
from runnel.security.sealed import Session, Ticket, seal, unseal
from runnel.security.tokens import TokenTable, make_token

KEY = bytes(32)
SECRET = b"a secret of more than thirty-two bytes, shared"
CONFIG = JwtConfig(audience="runnel", issuer="i", secret_file="secret")
TOKEN, STORED = make_token("alice", bytes(40), allow=["publish:orders.>"])
TABLE = TokenTable([STORED])
IDENTITY = Identity(proof="token", name="alice", id=STORED.id)
SESSION = Session(id="s", identity=IDENTITY, since=0.0, expires=1e12)
SIGNED = (
    b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSIsImF1ZCI6InJ1bm5lbCIsImlzcyI6ImkiLCJleHAiOjk5OTk5OTk5OTl9.AA"
)

SEEDS = (
    b"\x00" + TOKEN.encode(),
    b"\x01" + SIGNED,
    b"\x02" + seal(KEY, SESSION).encode(),
    b"\x03" + TABLE.encoded(),
    b"\x04publish:orders.*.>",
    b'\x05{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"k"}]}',
    b"\x06u-1",
)


def one_input(data: bytes) -> None:
    """The first byte chooses the reader. What is not the seed itself logs no one in."""
    if not data:
        return
    text = data[1:].decode("utf-8", "replace")
    with contextlib.suppress(InvalidOption, NotAuthenticated, TokenExpired):
        match data[0] % 7:
            case 0:
                assert (TABLE.find(text) is None) == (text != TOKEN)
            case 1:
                verify(text, CONFIG, [key_of_secret(SECRET)], 0.0)
                raise AssertionError("a signature fits that nobody made")
            case 2:
                for kind in (Session, Ticket):
                    assert unseal(KEY, text, kind, 0.0) == SESSION
            case 3:
                TokenTable.read(data[1:]).encoded()
            case 4:
                assert str(parse_rule(text)) == text
            case 5:
                keys_of_jwks(data[1:])
            case 6:
                filled = fill_template("subscribe:jobs.{sub}.>", {"sub": text})
                assert filled.count(".") == 2
                assert parse_rule(filled)
