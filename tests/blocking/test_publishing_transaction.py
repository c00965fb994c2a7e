"""Transactions without asyncio: the same, with `with`."""

from pathlib import Path

import msgspec
import pytest

import runnel
from runnel.blocking import Broker
from tests.patience import PATIENCE


class Paid(msgspec.Struct):
    order: int


@pytest.fixture(params=["memory", "folder"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Broker:
    return runnel.blocking.open(None if request.param == "memory" else tmp_path / "data")


def test_all_of_it_happens_at_the_end_of_the_block(broker: Broker) -> None:
    with broker:
        paid = broker.topic("paid", Paid)
        broker.publish("orders", b"1")
        with broker.subscribe("orders", group="g") as orders:
            delivery = orders.receive(timeout=PATIENCE)
            with broker.transaction() as tx:
                one = tx.publish(paid, Paid(1), expected_offset=0)
                many = tx.publish_many("log", [b"a", b"b"])
                tx.ack(delivery)
                tx.mark("m", 1, expected=None)
                assert broker.topics() == ["orders"]
            assert tx.applied
            assert (one.position.offset, many.span.last.offset) == (0, 1)
        assert broker.mark("m") == 1
        assert broker.marks("m") == {"m": 1}
        assert broker.statistics().groups[0].acked == 1
        assert broker.topics() == ["log", "orders", "paid"]


def test_an_exception_leaves_nothing(broker: Broker) -> None:
    def transact(broker: Broker) -> None:
        with broker.transaction() as tx:
            tx.publish("a", b"1")
            raise ZeroDivisionError

    with broker:
        with pytest.raises(ZeroDivisionError):
            transact(broker)
        assert broker.topics() == []


def test_what_cannot_be_done_is_said(broker: Broker) -> None:
    with broker:
        with pytest.raises(runnel.OffsetConflict):
            broker.publish("a", b"1", expected_offset=3)
        with broker.transaction() as tx:
            with pytest.raises(runnel.InvalidOption, match="blocking"):
                tx.ack(b"1")  # type: ignore[arg-type]
            assert "Blocking <Transaction" in repr(tx)
        with pytest.raises(runnel.TransactionEnded):
            tx.publish("a", b"1")


def test_a_batch_is_acked_in_one(broker: Broker) -> None:
    with broker:
        broker.topic("orders").publish_many([b"1", b"2"])
        with broker.subscribe("orders", group="g") as orders:
            batch = next(orders.batches(max_records=2))
            with broker.transaction() as tx:
                tx.ack(batch)
        assert broker.statistics().groups[0].lag == 0
