"""A real cluster of three, with every write synced, under load while its nodes are killed, frozen and cut off."""

from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.cluster.partition import Namespaces
from tests.cluster.storm import FAULTS, Storm
from tests.nightly import nightly_beyond

SHORT = ["cut off the leader", "kill the leader", "kill all", "rolling restart"]
RUNS = [SHORT, *([*FAULTS, *FAULTS] for _ in range(5))]  # 4 faults in `make test`, 90 more in `make nightly`


@pytest.mark.parametrize("run", nightly_beyond(1, list(range(len(RUNS)))))
async def test_nothing_acknowledged_is_lost_doubled_or_reordered_and_transactions_are_whole(
    tmp_path: Path, run: int
) -> None:
    await _judge(Storm(Nodes(tmp_path), run), RUNS[run])


@pytest.mark.nightly
async def test_the_same_where_every_node_has_a_network_of_its_own(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    await _judge(Storm(nodes, 1, Namespaces(nodes)), ["cut off the leader", "cut off any", *FAULTS])  # takes root


async def _judge(storm: Storm, faults: list[str]) -> None:
    await storm.run(faults)
    assert storm.broken() == []
    assert len(storm.stalls) == len(faults)
    assert storm.history.check().acknowledged > 100 * len(faults)


def test_the_judge_sees_a_lost_record_and_half_a_transaction(tmp_path: Path) -> None:
    storm = Storm(Nodes(tmp_path))
    storm.history.intend("orders", "a", "p")
    storm.history.acknowledged("orders", "a", 1, 4096)
    storm.history.subscribed("last reader of orders", "orders", 0)
    assert any("'a'" in one for one in storm.broken())
    storm.transactions[1] = True
    storm.history.delivered("last reader of orders", "orders", 1, 8192, "tx.1")
    assert any("in part" in one for one in storm.broken())
