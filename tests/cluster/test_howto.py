"""The configuration files of docs/howto/cluster.md, as they are written there, make a cluster that runnel accepts."""

import logging
import re
import signal
import subprocess
from pathlib import Path

import pytest

import runnel
from tests.cluster.nodes import Nodes, executable

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "cluster.md"


def _started(config: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([executable(), "-c", str(config)], stderr=subprocess.DEVNULL)


async def test_three_machines_started_by_the_page_are_a_cluster_that_syncs_every_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = dict(re.findall(r"```text\n# (\w)\.conf\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert list(written) == ["a", "b", "c"]
    nodes = Nodes(tmp_path)
    machines = dict(zip(written, nodes.nodes, strict=True))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, text in written.items():
            node = machines[name]
            for port, own in (("4222", node.port), ("8222", node.monitor_port), ("6222", node.route_port)):
                text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{own}")
            for other, one in machines.items():
                text = text.replace(f"nats-route://{other}:6222", f"nats-route://127.0.0.1:{one.route_port}")
            text = text.replace("/var/lib/nats", str(tmp_path / f"store-{name}"))
            path = tmp_path / f"{name}.conf"
            path.write_text(text)
            started.append(_started(path))
        with caplog.at_level(logging.WARNING, "runnel"):
            async with runnel.open(nodes.url, monitor=machines["a"].monitor, wait=60) as broker:
                await broker.publish("orders", b"42", key="42")
                info = await broker.backend.js.api("STREAM.INFO.RUNNEL")
                assert (info["config"]["num_replicas"], broker.backend.fsync) == (3, "commit")
        assert caplog.text == ""
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait()
