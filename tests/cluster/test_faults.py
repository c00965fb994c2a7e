"""A real cluster of three, with every write synced, under load while its nodes are killed, stopped and restarted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.cluster.storm import FAULTS, Storm
from tests.nightly import nightly_beyond

SHORT = ["kill the leader", "stop the leader", "kill all", "rolling restart"]
RUNS = [SHORT, *([*FAULTS, *FAULTS] for _ in range(7))]  # 4 faults in `make test`, 98 more in `make nightly`


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path).start()
    yield nodes
    nodes.stop()


@pytest.mark.parametrize("run", nightly_beyond(1, list(range(len(RUNS)))))
async def test_nothing_acknowledged_is_lost_doubled_or_reordered_and_transactions_are_whole(
    nodes: Nodes, run: int
) -> None:
    storm = await Storm(nodes, run).run(RUNS[run])
    assert storm.broken() == []
    assert len(storm.stalls) == len(RUNS[run])
    assert storm.history.check().acknowledged > 100 * len(RUNS[run])


def test_the_judge_sees_a_lost_record_and_half_a_transaction(tmp_path: Path) -> None:
    storm = Storm(Nodes(tmp_path))
    storm.history.intend("orders", "a", "p")
    storm.history.acknowledged("orders", "a", 1, 4096)
    storm.history.subscribed("last reader of orders", "orders", 0)
    assert any("'a'" in one for one in storm.broken())
    storm.transactions[1] = True
    storm.history.delivered("last reader of orders", "orders", 1, 8192, "tx.1")
    assert any("in part" in one for one in storm.broken())
