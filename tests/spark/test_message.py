"""What tasks tell the driver: keys in order, and who they are of; tasks that failed tell nothing."""

from __future__ import annotations

import pickle

from runnel.core.stages import StageKey
from runnel.spark.sink import StagedMessage, keys_of, writer_of
from runnel.spark.staging import WriterId

ME = WriterId("q", "life")
ONE, TWO, THREE = (StageKey("spark:q:life", 4, part, 0) for part in range(3))


def test_keys_come_in_the_order_of_the_tasks() -> None:
    messages = [StagedMessage(ME, (TWO, ONE), 5), None, StagedMessage(ME, (), 0), StagedMessage(ME, (THREE,), 1)]
    assert keys_of(messages) == [TWO, ONE, THREE]
    assert writer_of([None, *messages]) == ME
    assert writer_of([None, None]) is None
    assert keys_of([None]) == []


def test_a_message_is_small_and_survives_the_way() -> None:
    message = StagedMessage(ME, (ONE, TWO), 1_000_000)
    packed = pickle.dumps(message)
    assert pickle.loads(packed) == message
    assert len(packed) < 500
