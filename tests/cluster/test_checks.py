"""What is checked when a cluster is opened: version, JetStream, stream, replicas, and whether writes are synced."""

import logging
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import runnel
from runnel.cluster.jetstream import check_version, stream_config
from tests.cluster.nodes import executable, own_port
from tests.cluster.single import new_stream, open_cluster, single


async def _made(**changes: Any) -> str:
    """A stream that somebody else has made, in another way than runnel does."""
    stream = new_stream()
    async with open_cluster() as broker:
        config = {**stream_config(stream, 1), **changes}
        await broker.backend.js.api(f"STREAM.CREATE.{stream}", config)
    return stream


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"duplicate_window": 60 * 10**9}, "duplicate_window is below 120"),
        ({"allow_atomic": False}, "without allow_atomic"),
        ({"allow_msg_ttl": False, "allow_msg_schedules": False}, "without allow_msg_ttl"),
        ({"allow_msg_schedules": False}, "without allow_msg_schedules"),
        ({"allow_direct": False}, "without allow_direct"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.split()[-1],
)
async def test_a_stream_that_cannot_hold_topics_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(runnel.NotSupported, match=why):
        async with open_cluster(await _made(**changes)):
            pass


@pytest.fixture
def plain() -> Iterator[str]:
    """The address of a server without JetStream."""
    port = own_port()
    with subprocess.Popen([executable(), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL) as process:
        yield f"nats://127.0.0.1:{port}"
        process.send_signal(signal.SIGKILL)


async def test_a_server_without_jetstream_is_refused(plain: str) -> None:
    with pytest.raises(runnel.NotSupported, match="JetStream is off"):
        async with runnel.open(plain, wait=60):
            pass


def test_a_server_before_2_12_is_refused() -> None:
    for version in ("2.12.0", "2.12.0-RC.1", "2.15.1", "3.0.0"):
        check_version(version)
    for version in ("2.11.9", "2.9.1", "1.4", "", "dev"):
        with pytest.raises(runnel.NotSupported, match="upgrade the servers"):
            check_version(version)


async def test_replicas_that_the_servers_do_not_give_are_refused_and_others_than_asked_are_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(runnel.NotSupported, match="3 replicas need as many servers"):
        async with open_cluster(replicas=3):
            pass
    stream = await _made()
    with caplog.at_level(logging.WARNING, "runnel"):
        async with open_cluster(stream, replicas=3):
            pass
    assert f"the stream {stream!r} has 1 replicas, not 3 as asked" in caplog.text


async def test_opening_warns_where_the_monitoring_port_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for monitor in (f"http://127.0.0.1:{own_port()}", "file:///etc"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "runnel"):
            async with runnel.open(single().nodes[0].url, stream=new_stream(), monitor=monitor) as broker:
                assert broker.backend.fsync is None
        assert "its monitoring port was not reached" in caplog.text
