"""From options to a line: a server by its url, a folder by whoever owns it, or by owning it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import runnel.blocking
from runnel.core.errors import Unreachable
from runnel.spark.connection import BlockingConnection, open_connection
from runnel.spark.options import BrokerLocation
from tests.patience import PATIENCE
from tests.spark.rig import Served


def test_a_server_is_reached_by_its_url(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served, open_connection(BrokerLocation(url=served.url)) as line:
        served.publish_many("t", [b"x"])
        assert line.ask("topics") == ["t"]
        assert [one["client"] for one in line.ask("connections")] == ["spark"]


def test_what_the_url_says_counts_and_what_the_options_say_counts_more() -> None:
    with pytest.raises(Unreachable), open_connection(BrokerLocation(url="runnel://127.0.0.1:1?wait=0")) as line:
        line.ask("topics")
    with (
        pytest.raises(Unreachable),
        open_connection(BrokerLocation(url="runnel://127.0.0.1:1", client={"wait": 0.0})) as line,
    ):
        line.ask("topics")


def test_a_folder_that_has_an_owner_is_reached_through_it(tmp_path: Path) -> None:
    with runnel.blocking.open(tmp_path) as broker:
        broker.publish("t", b"x")
        with open_connection(BrokerLocation(path=str(tmp_path))) as line:
            assert line.ask("topics") == ["t"]
            assert isinstance(line, BlockingConnection)
            assert "another process" in repr(line._where.__self__)  # type: ignore[attr-defined]  # nothing was opened
        broker.publish("t", b"y")


def test_a_folder_without_an_owner_is_opened_for_as_long_as_it_takes(tmp_path: Path) -> None:
    with runnel.blocking.open(tmp_path) as broker:
        broker.publish("t", b"x")
    with open_connection(BrokerLocation(path=str(tmp_path))) as line:
        assert line.ask("topics") == ["t"]
        with open_connection(
            BrokerLocation(path=str(tmp_path))
        ) as another:  # another task, that goes through the first
            assert another.ask("topics") == ["t"]
    with runnel.blocking.open(tmp_path, share=False) as broker:  # it is free again
        assert broker.topics() == ["t"]


def test_when_the_owner_ends_a_process_that_needs_the_folder_takes_it_over(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, open_connection(BrokerLocation(path=str(tmp_path))) as owner:
        owner.ask("declare", topic="t")
        with open_connection(BrokerLocation(path=str(tmp_path))) as line:
            assert line.ask("topics") == ["t"]
            assert isinstance(owner, BlockingConnection)
            owner._socket.close()  # type: ignore[union-attr]
            owner._where.__self__._held.close()  # type: ignore[attr-defined]  # as a task that is done does
            assert pool.submit(line.ask, "topics").result(PATIENCE) == ["t"]
