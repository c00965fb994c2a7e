"""When to connect again."""

from runnel.client.options import ClientOptions
from runnel.client.reconnect import reconnect_delay
from runnel.wire.msgpack_messages import Goodbye

OPTIONS = ClientOptions(backoff_min=0.1, backoff_max=2.0)


def test_the_pause_doubles_up_to_its_bound() -> None:
    for rounds in range(2, 100):
        longest = min(0.1 * 2 ** min(rounds, 30), 2.0)
        assert longest / 4 <= reconnect_delay(rounds, None, OPTIONS) <= longest


def test_the_first_pause_may_be_none_at_all() -> None:
    found = [reconnect_delay(1, None, OPTIONS) for _ in range(200)]
    assert min(found) < 0.05 < max(found) <= 0.2


def test_no_two_clients_come_back_in_step() -> None:
    assert len({reconnect_delay(5, None, OPTIONS) for _ in range(100)}) > 90


def test_a_server_that_says_when_it_is_back_is_believed() -> None:
    found = [reconnect_delay(1, Goodbye(retry=3.0), OPTIONS) for _ in range(100)]
    assert 3.0 <= min(found) < max(found) <= 4.5
