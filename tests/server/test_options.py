"""What a server can be told about itself, and what it refuses to be told."""

from typing import Any

import pytest

from runnel.core.errors import InvalidOption
from runnel.server.options import ServerOptions


def test_every_limit_has_a_default() -> None:
    limits = ServerOptions().limits()
    assert limits["max_connections"] == 10_000
    assert limits["high_water"] == 1 << 20
    assert all(limit is not None for limit in limits.values())


def test_the_default_is_loopback_and_not_public() -> None:
    options = ServerOptions()
    assert (options.host, options.port, options.json_port) == ("127.0.0.1", 7788, 7789)
    assert options.insecure_public is False


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", -1),
        ("port", 65_536),
        ("port", True),
        ("json_port", 70_000),
        ("max_connections", 0),
        ("max_frame", 1.5),
        ("high_water", -1),
        ("max_calls", False),
        ("hello_timeout", 0),
        ("ping", -1.0),
        ("ping_timeout", float("nan")),
        ("idle_timeout", 0),
        ("accept_rate", "fast"),
        ("host", ""),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        ServerOptions(**{option: value})
    assert refused.value.option == option


def test_an_idle_timeout_and_the_listeners_can_be_left_out() -> None:
    options = ServerOptions(idle_timeout=None, port=None, json_port=None)
    assert (options.idle_timeout, options.port, options.json_port) == (None, None, None)
