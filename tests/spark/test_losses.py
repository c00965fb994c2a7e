"""What is lost ends a query, or is told and counted."""

from __future__ import annotations

import pickle

import pytest

from runnel.arrow.range_reader import DataLossPolicy
from runnel.core.errors import DataLost


def test_a_loss_is_an_error_that_names_what_was_lost_and_the_way_out() -> None:
    with pytest.raises(DataLost) as raised:
        DataLossPolicy(fail=True).tell("orders", 3, 7, "trimmed")
    assert str(raised.value) == (
        "the query has to read offsets [3, 7) of topic 'orders', which are lost: trimmed; "
        "with the option failOnDataLoss=false the query skips them and reports how many were lost"
    )


def test_where_it_is_not_known_what_was_lost_no_range_is_named() -> None:
    with pytest.raises(
        DataLost, match=r"^the records after offset 5 of topic 'jobs' cannot be determined: the topic was deleted;"
    ):
        DataLossPolicy(fail=True).tell("jobs", 5, 5, "the topic was deleted")


def test_the_error_comes_from_an_executor_as_it_was() -> None:
    error = pickle.loads(pickle.dumps(DataLost("t", 1, 2, "why")))
    assert (error.topic, error.first, error.end, error.why) == ("t", 1, 2, "why")


def test_losses_are_reported_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    losses = DataLossPolicy(fail=False)
    losses.tell("orders", 3, 7, "trimmed")
    losses.tell("jobs", 5, 5, "deleted")
    assert losses.offsets == 4
    assert caplog.records[0].message == (
        "offsets [3, 7) of topic 'orders' are lost (trimmed); the query continues, and has lost 4 offsets so far"
    )
    assert caplog.records[1].message == (
        "the records after offset 5 of topic 'jobs' cannot be determined (deleted); the query continues"
    )
    assert repr(losses) == "<DataLossPolicy, 4 offsets so far>"
