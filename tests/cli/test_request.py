"""`runnel request` and `runnel reply`: a request gets the value of the reply, or one line that says why not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import runnel as package
from tests.cli.conftest import Command
from tests.patience import PATIENCE


@contextmanager
def replying(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "runnel", "reply", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            assert child.stderr.readline().startswith("answering")
            yield child
        finally:
            child.kill()


SQUARE = f"{sys.executable} -c 'print(int(input()) ** 2, end=str())'"


def test_a_command_answers_and_its_failure_reaches_the_requester(runnel: Command, server: str, topic: str) -> None:
    with replying(topic, "--command", SQUARE, "--count", "3", "--server", server) as child:
        assert runnel("request", topic, "12", "--server", server).out == "144"
        failed = runnel("request", topic, "twelve", "--server", server)
        assert failed.status == 1
        assert "invalid literal" in failed.err
        assert failed.err.endswith("(request_failed)\n")
        found = runnel("request", topic, "3", "--header", "a=b", "--json", "--server", server).json()
        assert found["value"] == "9"
        assert child.wait(PATIENCE) == 0


def test_what_cannot_be_run_or_sent_is_a_failure_for_its_requester_alone(
    runnel: Command, server: str, topic: str
) -> None:
    large = f"{sys.executable} -c 'import sys; sys.stdout.write(input() * (17 << 20))'"
    with replying(topic, "--command", large, "--count", "3", "--server", server) as child:
        assert "too_large" in runnel("request", topic, "x", "--server", server).err
        with package.blocking.open(server) as broker, pytest.raises(package.RequestFailed, match="null byte"):
            broker.request(topic, "", key=b"a\0b", timeout=PATIENCE)
        assert runnel("request", topic, "", "--server", server).out == ""
        assert child.wait(PATIENCE) == 0


def test_members_of_a_group_share_requests_and_settle_them(runnel: Command, server: str, topic: str) -> None:
    with replying(topic, "pong", "--group", "g", "--count", "2", "--server", server) as child:
        for _ in range(2):
            assert runnel("request", topic, "ping", "--server", server).out == "pong"
        assert child.wait(PATIENCE) == 0
    (group,) = [one for one in runnel("group", "list", "--json", "--server", server).json() if one["pattern"] == topic]
    assert (group["lag"], group["acked"]) == (0, 2)


def test_a_request_without_a_responder_says_so(runnel: Command, server: str, topic: str) -> None:
    done = runnel("request", topic, "12", "--server", server)
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith("(no_responders)\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("request", "a", "b", "--timeout", "soon"), "invalid_option"),
        (("request", "a..b", "c"), "invalid_name"),
        (("reply", "a"), "usage_error"),
        (("reply", "a", "b", "--command", "c"), "usage_error"),
        (("reply", "a", "b", "--concurrency", "0"), "invalid_option"),
        (("reply", "a", "--command", "no-such-program; x"), "invalid_option"),
        (("reply", "a", "--command", "cat 'x"), "invalid_option"),
    ],
)
def test_what_makes_no_sense_is_refused(runnel: Command, arguments: tuple[str, ...], code: str) -> None:
    done = runnel(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.endswith(f"({code})\n")
