"""Every error between client and server names its facts, is on the right branch, and shows a way out."""

from __future__ import annotations

import pytest

from runnel.core.errors import (
    AddressInUse,
    BadAddress,
    BadCommand,
    ConnectionLost,
    HostRefused,
    LimitExceeded,
    NoAnswer,
    NotNow,
    OriginRefused,
    ProtocolError,
    PublicBindRefused,
    PublishCancelled,
    RunnelError,
    Unreachable,
    UsageError,
    WrongListener,
)

# error, its branch, the facts as fields, what the message must name, the way out
CASES: list[tuple[RunnelError, type[RunnelError], dict[str, object], list[str], str]] = [
    (
        WrongListener("the JSON lines listener", "the native one is at port 7788"),
        UsageError,
        {"here": "the JSON lines listener", "instead": "the native one is at port 7788"},
        ["the JSON lines listener"],
        "the native one is at port 7788",
    ),
    (
        BadAddress("http://x", "no such scheme"),
        UsageError,
        {"url": "http://x", "why": "no such scheme"},
        ["'http://x'", "no such scheme"],
        "use 'runnel://host:7788'",
    ),
    (
        Unreachable("host:7788", "refused"),
        NotNow,
        {"address": "host:7788", "why": "refused"},
        ["host:7788", "refused"],
        "see that one runs there",
    ),
    (
        ConnectionLost("host:7788", "it was reset"),
        NotNow,
        {"address": "host:7788", "why": "it was reset"},
        ["host:7788", "it was reset", "may have been done or not"],
        "look first, then do it again",
    ),
    (
        NoAnswer("publishing", 30, "connected"),
        NotNow,
        {"what": "publishing", "seconds": 30, "state": "connected"},
        ["publishing", "30 s", "connected"],
        "look first, then do it again",
    ),
    (PublishCancelled(), NotNow, {}, ["was cancelled while it waited", "nothing of it was stored"], "publish it again"),
    (
        OriginRefused("https://elsewhere.example"),
        UsageError,
        {"origin": "https://elsewhere.example"},
        ["https://elsewhere.example"],
        "name the origin in its http_cors",
    ),
    (
        HostRefused("evil.example:7780"),
        UsageError,
        {"host": "evil.example:7780"},
        ["'evil.example:7780'", "localhost"],
        "name it in its http_hosts",
    ),
    (
        BadCommand("it is empty", field="topic"),
        UsageError,
        {"why": "it is empty", "field": "topic"},
        ["it is empty"],
        "send a line such as",
    ),
    (
        ProtocolError("a frame of kind 99 came"),
        RunnelError,
        {"why": "a frame of kind 99 came"},
        ["a frame of kind 99 came"],
        "see that both sides speak the same protocol",
    ),
    (
        LimitExceeded("max_frame", 5000, 4096),
        UsageError,
        {"limit": "max_frame", "value": 5000, "allowed": 4096},
        ["5,000", "max_frame=4,096"],
        "raise max_frame of the server",
    ),
    (
        AddressInUse("127.0.0.1:7788"),
        UsageError,
        {"address": "127.0.0.1:7788"},
        ["127.0.0.1:7788 is in use"],
        "choose another port",
    ),
    (
        PublicBindRefused("0.0.0.0"),
        UsageError,
        {"host": "0.0.0.0"},
        ["0.0.0.0 can be reached from other machines"],
        "listen on 127.0.0.1, or say --insecure-public",
    ),
]


@pytest.mark.parametrize(("error", "branch", "facts", "named", "way_out"), CASES, ids=[case[0].code for case in CASES])
def test_an_error_carries_its_facts_and_a_way_out(
    error: RunnelError, branch: type[RunnelError], facts: dict[str, object], named: list[str], way_out: str
) -> None:
    assert isinstance(error, branch)
    assert {name: getattr(error, name) for name in facts} == facts
    assert [text for text in [*named, way_out] if text not in str(error)] == []


def test_a_limit_may_be_a_part_of_a_second() -> None:
    assert "0.5 is over hello_timeout=0.25" in str(LimitExceeded("hello_timeout", 0.5, 0.25))
