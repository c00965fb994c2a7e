"""What stands behind a connection that is gone: nobody, who takes every call and does nothing."""

from runnel.server.native.connection import CLOSED_SESSION, ConnectionSession


def test_nobody_takes_every_call_of_a_session_and_does_nothing() -> None:
    session: ConnectionSession = CLOSED_SESSION
    session.opened()
    session.lost()
    session.drain("closing time", None)
    assert session.stranger(b"GET ") is None
    assert session.describe() == {}
    assert session.handlers == []
