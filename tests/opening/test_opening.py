"""`runnel.open`: from a location to a broker."""

import re
from pathlib import Path
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.core.errors import BadAddress, InvalidOption, NotSupported
from runnel.opening import open
from runnel.runtime.clock import SystemClock
from runnel.testing.clock import JumpingClock


def test_nowhere_is_memory() -> None:
    broker = open()
    assert isinstance(broker, Broker)
    assert isinstance(broker.clock, SystemClock)


def test_a_clock_may_be_given() -> None:
    clock = JumpingClock()
    assert open(clock=clock).clock is clock


@pytest.mark.parametrize(
    "where",
    ["runnel://localhost:7788", "runnels://localhost:7788", "runnel+unix:///tmp/none.sock"],
)
def test_an_address_is_a_server_and_nothing_is_reached_before_the_block_is_entered(where: str) -> None:
    clock = JumpingClock()
    broker: Any = open(where, clock=clock)
    assert (type(broker.backend).__name__, broker.clock) == ("RemoteBackend", clock)


@pytest.mark.parametrize("where", ["nats://a,b:4333", "tls://me:secret@a"])
def test_an_address_of_nats_is_a_cluster_and_nothing_is_reached_before_the_block_is_entered(where: str) -> None:
    broker: Any = open(where)
    assert type(broker.backend).__name__ == "ClusterBackend"
    assert "secret" not in repr(broker)


def test_a_server_of_another_kind_is_not_spoken_to() -> None:
    with pytest.raises(NotSupported, match=r"begins with runnel://, runnels://, runnel\+unix://"):
        open("redis://localhost")


@pytest.mark.parametrize("where", ["data/", Path("data")])
def test_a_folder_is_not_touched_before_the_block_is_entered(
    where: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "in 'data'" in repr(open(where))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["", 7])
def test_what_is_no_place_is_refused(where: Any) -> None:
    with pytest.raises(InvalidOption, match="the path of a folder"):
        open(where)


def test_a_wrong_option_of_a_folder_is_named_and_the_right_ones_with_it() -> None:
    with pytest.raises(InvalidOption, match=r"did you mean .fsync"):
        open("data/", sync="commit")
    with pytest.raises(InvalidOption, match="'commit', 'interval', 'os'"):
        open("data/", fsync="never")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(InvalidOption, match="auto_create, clock and telemetry") as caught:
        open(autocreate=False)
    assert (caught.value.option, caught.value.value) == ("autocreate", False)


def test_an_option_of_a_folder_in_memory_asks_for_the_folder() -> None:
    with pytest.raises(InvalidOption, match=r"give one, as in open\('data/', fsync=...\)"):
        open(fsync="os")


def test_an_unknown_option_of_a_server_is_named() -> None:
    with pytest.raises(InvalidOption) as caught:
        open("runnel://localhost:7788", fsync="commit")
    assert caught.value.option == "fsync"


@pytest.mark.parametrize("where", ["localhost:7788", "10.0.0.7:7788", "[::1]:7788", "broker-1.internal:1"])
def test_an_address_without_its_scheme_is_no_folder(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadAddress, match=re.escape(f"did you mean 'runnel://{where}'?")):
        open(where)
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_is_called_like_an_address_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open("./localhost:7788") as broker:
        await broker.publish("t", b"x")
    async with open("localhost:7788") as broker:  # it is there now
        assert await broker.topics() == ["t"]
    async with open(Path("other:7788")) as broker:
        assert await broker.topics() == []


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("runnel:/127.0.0.1", "'runnel://127.0.0.1'"),
        ("runnel//127.0.0.1:7788", "'runnel://127.0.0.1:7788'"),
        ("runnel/127.0.0.1:7788", "'runnel://127.0.0.1:7788'"),
        ("runnels:/bus.example", "'runnels://bus.example'"),
        ("runnel+unix:/tmp/socket", "'runnel+unix:///tmp/socket'"),
        ("nats:/user:hidden@a:4222", "'nats://a:4222'"),
        (":memory:", "runnel.open()"),
    ],
)
def test_a_path_that_looks_like_a_mistyped_address_is_refused(
    where: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadAddress, match="did you mean") as refused:
        open(where)
    assert meant in str(refused.value)
    assert "hidden" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    for folder in ("runnel/data", "tls", f"./{where}"):
        open(folder)
