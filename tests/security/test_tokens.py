"""Opaque tokens: how they are made, kept and found; sealed sessions and tickets; slowed logins; rates."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption, NotAuthenticated, TokenExpired
from runnel.security.policy import Identity
from runnel.security.sealed import Session, Ticket, csrf_token, is_csrf_token, seal, unseal
from runnel.security.tokens import TokenTable, is_opaque, make_token
from runnel.security.usage import FORGET_AFTER, LONGEST_DELAY, FailedLogins, Rate
from runnel.server.access.files import AuthFiles

RANDOM = bytes(range(40))
KEY = bytes(32)


def test_a_token_is_found_and_only_its_hash_is_kept() -> None:
    token, stored = make_token("alice", RANDOM, allow=["publish:orders.>"], roles=["writer"])
    table = TokenTable().with_token(stored)
    data = table.encoded()
    assert is_opaque(token)
    assert token.encode() not in data
    assert token.rpartition("_")[2].encode() not in data
    found = TokenTable.read(data).find(token)
    assert found == stored
    assert [str(rule) for rule in stored.rules] == ["publish:orders.>"]


@given(st.text(max_size=100))
def test_no_other_text_is_a_token(text: str) -> None:
    _, stored = make_token("alice", RANDOM)
    assert TokenTable([stored]).find(text) is None


def test_a_token_with_a_wrong_secret_or_a_wrong_id_is_not_found() -> None:
    token, stored = make_token("alice", RANDOM)
    table = TokenTable([stored])
    for index in range(4, len(token)):
        other = token[:index] + ("0" if token[index] != "0" else "1") + token[index + 1 :]
        assert table.find(other) is None


def test_tokens_are_revoked_by_name_or_id() -> None:
    _, one = make_token("alice", RANDOM)
    _, two = make_token("alice", RANDOM[::-1])
    _, other = make_token("bob", RANDOM[1:] + b"\xff")
    table = TokenTable([one, two, other])
    assert table.without("alice")[1] == [one, two]
    assert table.without(two.id)[1] == [two]
    assert len(table.without("nobody")[0]) == 3


@pytest.mark.parametrize("name", ["", "a" * 129, "a\nb", "@role", "$x", "\x1b[2J"])
def test_a_name_that_would_forge_a_line_or_a_role_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption):
        make_token(name, RANDOM)


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"version": 2}', b'{"version":1,"tokens":[{"id":"x"}]}', b"\xff"])
def test_a_damaged_file_of_tokens_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidOption):
        TokenTable.read(data)
    assert len(TokenTable.read(b" ")) == 0


IDENTITY = Identity(proof="token", name="alice", id="1")
SESSION = Session(id="s", identity=IDENTITY, since=0.0, expires=100.0)


def test_tokens_that_are_made_and_revoked_at_once_are_all_made_and_revoked(tmp_path: Path) -> None:
    (tmp_path / "auth.toml").touch()
    old, new = (
        [make_token(f"{kind}-{at}", bytes([at]) * 8 + kind.encode() * 32)[1] for at in range(8)] for kind in "on"
    )
    AuthFiles(tmp_path / "auth.toml").write_tokens(TokenTable(old))

    def edit(at: int) -> None:
        files = AuthFiles(tmp_path / "auth.toml")
        files.edit_tokens(lambda tokens: tokens.with_token(new[at]))
        files.edit_tokens(lambda tokens: tokens.without(f"o-{at}")[0])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(edit, range(8)))
    kept = AuthFiles(tmp_path / "auth.toml").read_tokens()
    assert sorted(one.name for one in kept) == [f"n-{at}" for at in range(8)]
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".new"] == []


def test_a_sealed_text_comes_back_until_it_expires() -> None:
    text = seal(KEY, SESSION)
    assert unseal(KEY, text, Session, 99.0) == SESSION
    with pytest.raises(TokenExpired):
        unseal(KEY, text, Session, 100.0)


def test_a_sealed_text_that_was_changed_or_is_of_another_kind_or_key_is_refused() -> None:
    text = seal(KEY, SESSION)
    for index in range(0, len(text), 7):
        with pytest.raises(NotAuthenticated):
            unseal(KEY, text[:index] + ("A" if text[index] != "A" else "B") + text[index + 1 :], Session, 0.0)
    ticket = Ticket(id="t", identity=IDENTITY, topics=("a",), origin="o", expires=9.0)
    for sealed, kind, key in ((text, Ticket, KEY), (seal(KEY, ticket), Session, KEY), (text, Session, b"x" * 32)):
        with pytest.raises(NotAuthenticated):
            unseal(key, sealed, kind, 0.0)


@given(st.text(max_size=200))
def test_no_other_text_is_a_session(text: str) -> None:
    with pytest.raises(NotAuthenticated):
        unseal(KEY, text, Session, 0.0)
    assert not is_csrf_token(KEY, "s", text)


def test_a_csrf_token_belongs_to_one_session() -> None:
    assert is_csrf_token(KEY, "s", csrf_token(KEY, "s"))
    assert not is_csrf_token(KEY, "t", csrf_token(KEY, "s"))


def test_failed_logins_take_longer_each_time_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.security.usage.FIRST_DELAY", 0.1)
    failed = FailedLogins()
    delays = [failed.delay("10.0.0.1", 0.0) for _ in range(10)]
    assert delays[:3] == [0.1, 0.2, 0.4]
    assert delays[-1] == LONGEST_DELAY
    assert failed.delay("10.0.0.2", 0.0) == 0.1
    assert failed.delay("10.0.0.1", FORGET_AFTER + 1) == 0.1
    failed.succeeded("10.0.0.1")
    assert failed.delay("10.0.0.1", FORGET_AFTER + 1) == 0.1


def test_what_goes_beyond_a_rate_has_to_wait() -> None:
    rate = Rate(100.0)
    assert rate.take(100, 0.0) == 0.0
    assert rate.take(50, 0.0) == pytest.approx(0.5)
    assert rate.take(0, 0.5) == 0.0


def test_no_secret_is_in_the_repr_of_what_is_logged() -> None:
    token, stored = make_token("alice", RANDOM)
    secret = token.rpartition("_")[2]
    assert secret not in repr(stored)
    assert secret not in repr(msgspec.structs.asdict(stored))
