"""What JetStream says in the subjects of its messages."""

import pytest

from runnel.cluster.jetstream import Acknowledged, read_reply


@pytest.mark.parametrize(
    "subject", ["RUNNEL.g1-0.%s", "hub.ACCOUNT.RUNNEL.g1-0.%s", "hub.ACCOUNT.RUNNEL.g1-0.%s.r4nd0m"]
)
def test_the_numbers_of_a_delivery_are_found_with_a_domain_and_without(subject: str) -> None:
    found = read_reply("$JS.ACK." + subject % "2.345.12.1795120486428689500.7")
    assert found == Acknowledged(2, 345, 12, 1795120486428689500, 7)
